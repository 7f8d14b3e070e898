"""Shared memory after runs that were killed, that failed, or that just ended."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_algos.doctor import check_shared_memory
from rlhf_algos.owned_folders import OWNER_FILE, FoundFolder, found_folders, remove_abandoned
from rlhf_algos.weight_sync import SharedMemory

# What `SharedMemory` does, without the seconds that torch takes to be imported.
SCRIPT = """
import sys
from pathlib import Path
from rlhf_algos.owned_folders import OwnedFolder
owned = OwnedFolder(Path(sys.argv[1]))
(owned.path / "weights-0.safetensors").write_bytes(b"w" * 2**20)
(owned.path / "weights-1.partial").write_bytes(b"w" * 2**20)
print(owned.path, flush=True)
"""
WITH_TORCH = """
import sys
from pathlib import Path
from rlhf_algos.weight_sync import SharedMemory
shared = SharedMemory(Path(sys.argv[1]))
shared.path(0).write_bytes(b"w")
print(shared.folder, flush=True)
"""


def process(parent, then, script=SCRIPT):
    """A process that publishes into `parent` and then does what the code says; waits for the publication."""
    running = subprocess.Popen(
        [sys.executable, "-c", f"{script}\n{then}", str(parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = running.stdout.readline().strip()
    assert folder, running.communicate()[1]
    return running, folder


def end(running):
    running.communicate(timeout=60)
    return running.returncode


def folders(parent):
    return {str(path) for path in parent.iterdir()}


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_the_next_start_removes_what_killed_runs_have_left_and_no_living_run(tmp_path, caplog):
    living, of_living = process(tmp_path, "import time; time.sleep(600)")
    left = set()
    for _ in range(3):
        running, folder = process(tmp_path, "import time; time.sleep(600)")
        # The start before has removed the one that was killed before it.
        assert folders(tmp_path) == {of_living, folder}
        os.kill(running.pid, signal.SIGKILL)
        assert end(running) == -signal.SIGKILL
        left = {folder}
    assert folders(tmp_path) == left | {of_living}

    with caplog.at_level(logging.WARNING):
        shared = SharedMemory(tmp_path)

    assert folders(tmp_path) == {of_living, str(shared.folder)}
    assert f"Removed {left.pop()} (2.0 MiB), which a process that was killed has left." in caplog.text
    assert files(of_living) == [OWNER_FILE, "weights-0.safetensors", "weights-1.partial"]
    shared.close()
    os.kill(living.pid, signal.SIGKILL)
    end(living)
    remove_abandoned(tmp_path)
    assert folders(tmp_path) == set()


@pytest.mark.parametrize(
    ("then", "status"),
    [("", 0), ("raise ValueError('the environment broke')", 1), ("sys.exit(3)", 3)],
)
def test_an_interpreter_that_ends_frees_it(tmp_path, then, status):
    running, _ = process(tmp_path, then, script=WITH_TORCH if status == 1 else SCRIPT)
    assert end(running) == status
    assert folders(tmp_path) == set()


def test_weights_that_nobody_holds_are_freed(tmp_path):
    shared = SharedMemory(tmp_path)
    assert folders(tmp_path) == {str(shared.folder)}
    del shared
    assert folders(tmp_path) == set()


def test_a_forked_process_frees_nothing(tmp_path):
    fork = "import os\nif os.fork() == 0: sys.exit(0)\nos.wait()\n"
    then = f"{fork}print((owned.path / 'weights-0.safetensors').exists(), flush=True)"
    running, _ = process(tmp_path, then)
    # The child is gone by the time the parent looks, and so is its output.
    assert running.stdout.read().split()[-1] == "True"
    assert end(running) == 0
    assert folders(tmp_path) == set()


def test_a_folder_without_an_owner_is_left_alone_and_named(tmp_path, caplog):
    unowned = tmp_path / "rlhf_algos-old"
    unowned.mkdir()
    (unowned / "weights-3.safetensors").write_bytes(b"w" * 2**20)
    with caplog.at_level(logging.WARNING):
        assert remove_abandoned(tmp_path) == []
    # It may be one that is being made.
    assert caplog.text == ""
    os.utime(unowned, (0, 0))
    with caplog.at_level(logging.WARNING):
        SharedMemory(tmp_path).close()
    assert f"{unowned} (1.0 MiB) names no owner and is left alone" in caplog.text
    assert unowned.is_dir()


def test_another_users_folder_is_left_alone(tmp_path, monkeypatch):
    other = tmp_path / "rlhf_algos-other"
    other.mkdir()
    (other / OWNER_FILE).touch()
    monkeypatch.setattr(os, "getuid", lambda: other.stat().st_uid + 1)
    assert remove_abandoned(tmp_path) == []
    assert [folder.owner for folder in found_folders(tmp_path)] == ["another user"]
    assert other.is_dir()


def test_links_and_files_of_such_a_name_stop_no_start(tmp_path, caplog):
    """In a folder where anybody may write, nothing that a link leads to is touched, walked or called removed."""
    parent, home = tmp_path / "shm", tmp_path / "home"
    parent.mkdir()
    for name in ("gone", "walked"):
        (home / name).mkdir(parents=True)
    (home / "gone" / OWNER_FILE).touch()
    (home / "walked" / "large").write_bytes(b"w" * 2**20)
    (parent / "rlhf_algos-loop").symlink_to(parent / "rlhf_algos-loop")
    (parent / "rlhf_algos-home").symlink_to(home / "walked")
    (parent / "rlhf_algos-gone").symlink_to(home / "gone")
    (parent / "rlhf_algos-nowhere").symlink_to(home / "nowhere")
    (parent / "rlhf_algos-file").write_text("mine")
    inside = parent / "rlhf_algos-inside"
    inside.mkdir()
    (inside / OWNER_FILE).symlink_to(home / "gone" / OWNER_FILE)
    (inside / "home").symlink_to(home)
    before = set(tmp_path.rglob("*"))
    for path in (inside, home / "walked"):
        os.utime(path, (0, 0))

    with caplog.at_level(logging.WARNING):
        assert remove_abandoned(parent) == []
        SharedMemory(parent).close()

    assert set(tmp_path.rglob("*")) == before
    assert "Removed" not in caplog.text
    assert {record.args[0] for record in caplog.records} == {inside}
    assert found_folders(parent) == [FoundFolder(inside, 0, "unknown")]
    assert len([str(finding) for finding in check_shared_memory(parent)]) == 2


def test_what_could_not_be_removed_is_not_called_removed(tmp_path, caplog, monkeypatch):
    folder = tmp_path / "rlhf_algos-stuck"
    folder.mkdir()
    (folder / OWNER_FILE).touch()

    def fails(path, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("rlhf_algos.owned_folders.shutil.rmtree", fails)
    with caplog.at_level(logging.WARNING):
        assert remove_abandoned(tmp_path) == []
    assert "Removed" not in caplog.text and f"{folder} (0.0 MiB) could not be removed" in caplog.text


def test_doctor_names_what_is_left(tmp_path):
    shared = SharedMemory(tmp_path)
    for name, owned in (("killed", True), ("old", False)):
        folder = tmp_path / f"rlhf_algos-{name}"
        folder.mkdir()
        (folder / "weights-3.safetensors").write_bytes(b"w" * 3 * 2**19)
        if owned:
            (folder / OWNER_FILE).touch()
    assert [str(finding) for finding in check_shared_memory(tmp_path)] == [
        "ok       weights in shared memory: 1 in use, 0.0 MiB",
        f"warning  {tmp_path}/rlhf_algos-killed: 1.5 MiB, its run was killed -> the next start of a run removes it",
        f"warning  {tmp_path}/rlhf_algos-old: 1.5 MiB, it names no owner -> rm -r it, if no run uses it",
    ]
    # Looking takes no lock away from its owner.
    lock = os.open(shared.folder / OWNER_FILE, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)
    shared.close()


def test_a_failed_write_leaves_no_partial_file(tmp_path, monkeypatch):
    import torch

    from rlhf_algos.weight_sync import shared_memory

    def fails(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(shared_memory, "save_file", fails)
    with pytest.raises(OSError, match="No space left"):
        shared_memory.write_weights(tmp_path / "weights-1.safetensors", {"a": torch.ones(2)}, 1)
    assert list(tmp_path.iterdir()) == []


def test_the_partial_file_of_a_dead_writer_goes_with_its_version(tmp_path):
    shared = SharedMemory(tmp_path)
    for version in (1, 2):
        shared.path(version).with_suffix(".partial").touch()
    shared.path(2).touch()
    shared.remove_older(2)
    assert files(shared.folder) == [OWNER_FILE, "weights-2.partial", "weights-2.safetensors"]
    shared.close()
