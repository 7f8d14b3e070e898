"""A weight channel of your own: a folder that every machine sees, where learners and rollout actors share no memory.

    python examples/my_channel.py

Expect "version 1 arrived bit for bit" and "version 0 is gone". Training with it is then
`.env_runners(weight_channel={"type": "my_channel.NetworkFolder", "folder": "/mnt/weights"})`, with this file's folder
on PYTHONPATH.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rlhf_algos.weight_sync import Channel


class NetworkFolder(Channel):
    """One safetensors file per version; it gets its name when it is whole, so nobody reads half of one."""

    def __init__(self, folder: str) -> None:
        # Of this run alone: several may use the folder at once.
        self.folder = Path(tempfile.mkdtemp(dir=Path(folder).absolute()))

    def file(self, version: int) -> Path:
        """Where a version is."""
        return self.folder / f"{version}.safetensors"

    def send(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Writes the file; cloned, for safetensors refuses two names for one tensor, such as a tied head's."""
        partial = self.folder / f"{version}.partial"
        save_file({name: tensor.cpu().contiguous().clone() for name, tensor in weights.items()}, partial)
        partial.rename(self.file(version))

    def receive(self, version: int) -> Mapping[str, torch.Tensor]:
        """Reads it."""
        return load_file(self.file(version))

    def remove_older(self, version: int) -> None:
        """Delete what no actor will ask for again."""
        for file in self.folder.glob("*.safetensors"):
            if int(file.stem) < version:
                file.unlink()

    def close(self) -> None:
        """Leaves nothing behind, also when it is called again."""
        shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        channel = NetworkFolder(place)
        for version in (0, 1):
            channel.send({"w": torch.full((3,), float(version))}, version)
        channel.remove_older(1)
        assert channel.receive(1)["w"].tolist() == [1.0, 1.0, 1.0]
        print("version 1 arrived bit for bit")
        print("version 0 is", "there" if channel.file(0).exists() else "gone")
        channel.close()
