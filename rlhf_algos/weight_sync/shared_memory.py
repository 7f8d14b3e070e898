"""Weights as a safetensors file in shared memory: written once, mapped by every rollout actor of the machine.

Nothing is pickled and nothing passes through the driver. The file's header carries the version; it is renamed
into place when it is whole, so a reader never sees half of it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

SHARED_MEMORY = Path("/dev/shm")


class SharedWeights:
    """The folder of one run's published weights. Only the newest version is kept.

    Args:
        parent: where the folder is made; shared memory by default.
    """

    def __init__(self, parent: Path = SHARED_MEMORY) -> None:
        if not parent.is_dir():
            raise FileNotFoundError(
                f"{parent} does not exist: weights are handed over through shared memory. Mount a tmpfs there."
            )
        # Readable by this user alone.
        self.folder = Path(tempfile.mkdtemp(prefix="rlhf_algos-", dir=parent))

    def path(self, version: int) -> Path:
        """The file of a version."""
        return self.folder / f"weights-{version}.safetensors"

    def remove_older(self, version: int) -> None:
        """Deletes every version but `version`; a reader that still maps one keeps its memory until it lets go."""
        for file in self.folder.glob("weights-*.safetensors"):
            if file != self.path(version):
                file.unlink()

    def close(self) -> None:
        """Frees the shared memory."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_weights(path: Path, weights: Mapping[str, torch.Tensor], version: int) -> int:
    """Writes tensors under their names; returns the bytes written.

    Raises:
        OSError: if shared memory is full; says how much was needed and is free.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise OSError(
            f"Publishing the weights needs {needed / 2**20:.0f} MiB in {path.parent}, {free / 2**20:.0f} MiB are free. "
            "Enlarge the shared memory (docker: --shm-size)."
        )
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"version": str(version)})
    partial.replace(path)
    return needed


def read_weights(path: Path) -> tuple[dict[str, torch.Tensor], int]:
    """Maps what `write_weights` wrote; returns the tensors and their version.

    Raises:
        FileNotFoundError: if the file is not visible on this machine.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not visible here: weights are handed over through this machine's shared memory, so rollout "
            "actors must run on the learners' machine."
        )
    with safe_open(str(path), framework="pt") as file:
        version = int(file.metadata()["version"])
        return {name: file.get_tensor(name) for name in file.keys()}, version  # noqa: SIM118
