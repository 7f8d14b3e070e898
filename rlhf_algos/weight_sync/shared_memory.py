"""Weights as a safetensors file in shared memory: written once, mapped by every rollout actor of the machine.

Nothing is pickled and nothing passes through the driver. The file's header carries the version; it is renamed
into place when it is whole, so a reader never sees half of it.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rlhf_algos.owned_folders import OwnedFolder
from rlhf_algos.weight_sync.channel import Channel

SHARED_MEMORY = Path("/dev/shm")


class SharedMemory(Channel):
    """Learners, actors and driver of one machine; a version is a file that everybody maps.

    The files lie in a folder of the run's own, which is removed by `close`, when the interpreter of the driver ends,
    or, if it was killed, by the next start of any run. A copy, as both ends have it, owns nothing.

    Args:
        parent: where the folder is made; shared memory by default.

    Attributes:
        folder: of the files.
    """

    def __init__(self, parent: str | Path = SHARED_MEMORY) -> None:
        if not Path(parent).is_dir():
            raise FileNotFoundError(
                f"{parent} does not exist: weights are handed over through shared memory. Mount a tmpfs there."
            )
        # Another process, which gets the path, may have another working directory.
        self._owned = OwnedFolder(Path(parent).absolute())
        self.folder = self._owned.path

    def __getstate__(self) -> dict[str, Path]:
        """Of a copy for another process: where the files are."""
        return {"folder": self.folder}

    def path(self, version: int) -> Path:
        """The file of a version."""
        return self.folder / f"weights-{version}.safetensors"

    def send(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Writes the file of a version.

        Raises:
            OSError: if shared memory is full; says how much was needed and is free.
        """
        write_weights(self.path(version), weights, version)

    def receive(self, version: int) -> dict[str, torch.Tensor]:
        """Maps the file of a version.

        Raises:
            FileNotFoundError: if the file is not visible on this machine.
            ValueError: if it holds another version.
        """
        weights, found = read_weights(self.path(version))
        if found != version:
            raise ValueError(f"{self.path(version)} holds the weights of version {found}.")
        return weights

    def remove_older(self, version: int) -> None:
        """Deletes every version before `version`; a reader that still maps one keeps its memory until it lets go."""
        # With what a writer that died has left of one.
        for file in self.folder.glob("weights-*"):
            if int(file.stem.removeprefix("weights-")) < version:
                file.unlink()

    def close(self) -> None:
        """Frees the shared memory; a copy's does nothing."""
        if "_owned" in self.__dict__:
            self._owned.close()


def write_weights(path: Path, weights: Mapping[str, torch.Tensor], version: int) -> int:
    """Writes tensors under their names; returns the bytes written.

    The file holds one flat tensor per dtype, and its header says where each name stands in it: hundreds of small
    expert tensors as separate entries would take several times longer to write and to read.

    Raises:
        OSError: if shared memory is full; says how much was needed and is free.
    """
    parts: dict[str, list[torch.Tensor]] = {}
    offsets: dict[str, int] = {}
    index = []
    for name, tensor in weights.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        index.append((name, dtype, offsets.get(dtype, 0), list(tensor.shape)))
        offsets[dtype] = offsets.get(dtype, 0) + tensor.numel()
        parts.setdefault(dtype, []).append(tensor.detach().reshape(-1))
    flat = {dtype: torch.cat(tensors).cpu() for dtype, tensors in parts.items()}
    needed = sum(tensor.numel() * tensor.element_size() for tensor in flat.values())
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise OSError(
            f"Publishing the weights needs {needed / 2**20:.0f} MiB in {path.parent}, {free / 2**20:.0f} MiB are free. "
            "Enlarge the shared memory (docker: --shm-size)."
        )
    partial = path.with_suffix(".partial")
    try:
        save_file(flat, partial, metadata={"version": str(version), "index": json.dumps(index)})
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return needed


def read_weights(path: Path) -> tuple[dict[str, torch.Tensor], int]:
    """Maps what `write_weights` wrote; returns the tensors, which share the mapped memory, and their version.

    Raises:
        FileNotFoundError: if the file is not visible on this machine.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not visible here: weights are handed over through this machine's shared memory, so rollout "
            "actors must run on the learners' machine."
        )
    with safe_open(str(path), framework="pt") as file:
        header = file.metadata()
        flat = {dtype: file.get_tensor(dtype) for dtype in file.keys()}  # noqa: SIM118
    tensors = {
        name: flat[dtype][offset : offset + math.prod(shape)].view(shape)
        for name, dtype, offset, shape in json.loads(header["index"])
    }
    return tensors, int(header["version"])
