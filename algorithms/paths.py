"""Relative paths in a configuration: they mean the folder that the script was started in, in every process.

Ray Tune runs each trial in a folder of its own, and Ray's workers may run anywhere. So a path is made absolute where it
is set, in the user's own process, also within `tune.grid_search` and `tune.choice`; one that is set in another way is
made so when the configuration is validated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from ray.tune.search.sample import Categorical

from rlhf_algos.models import BUNDLED, PREFIX

# What Tune calls the folder that a trial's process was in before it changed to the trial's own.
_FOLDER_BEFORE_TUNE = "TUNE_ORIG_WORKING_DIR"
_ENGINE_PATHS = ("download_dir",)
_CHANNEL_PATHS = ("parent", "folder")
_MONITORS = ("tensorboard", "csv_monitor")


def absolute_path(path: str | Path) -> str:
    """The path from the folder that the script was started in; `~` is the home folder."""
    started_in = Path(os.environ.get(_FOLDER_BEFORE_TUNE) or Path.cwd())
    return os.path.normpath(started_in / Path(path).expanduser())


def absolute_paths(paths: Any) -> Any:
    """`absolute_path` of one path, or of each in a list; what is neither is kept, for the check of its type."""
    if isinstance(paths, list | tuple):
        return [absolute_paths(path) for path in paths]
    return absolute_path(paths) if isinstance(paths, str | Path) else paths


def absolute_model(name: Any) -> Any:
    """A model's folder as an absolute path; a bundled name and a hub id stay as they are.

    A folder is what begins with "/", "./", "../" or "~", what exists, and what can be no hub id.

    >>> absolute_model("rlhf_algos/tiny-moe"), absolute_model("some-org/Some-Model-1.5B")
    ('rlhf_algos/tiny-moe', 'some-org/Some-Model-1.5B')
    """
    if not isinstance(name, str | Path) or str(name) in BUNDLED or str(name).startswith(PREFIX):
        return name
    path = absolute_path(name)
    is_folder = str(name).startswith(("/", ".", "~")) or Path(path).exists() or not _is_hub_id(str(name))
    return path if is_folder else str(name)


def require_model_folder(name: str) -> None:
    """Raises ValueError if a model is named by a path at which there is none."""
    if not name.startswith("/"):
        return
    if not Path(name).is_dir():
        raise ValueError(
            f"language_model({name!r}): there is no such folder. Give the folder of a model, a bundled name "
            f"({', '.join(BUNDLED)}) or a hub id (organization/name)."
        )
    if not (Path(name) / "config.json").is_file():
        raise ValueError(f"language_model({name!r}): the folder holds no model (no config.json).")


def absolute_engine_paths(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `vllm(...)`, those that are paths absolute."""
    return {key: absolute_paths(value) if key in _ENGINE_PATHS else value for key, value in arguments.items()}


def absolute_channel_paths(channel: Any) -> Any:
    """A weight channel; of a dict the options that are paths absolute: `Path`s, and what is called parent or folder."""
    if not isinstance(channel, Mapping):
        return channel
    return {
        key: absolute_paths(value) if key in _CHANNEL_PATHS or isinstance(value, Path) else value
        for key, value in channel.items()
    }


def absolute_deepspeed_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `deepspeed(config=...)`, the folders of its monitors absolute."""
    return {
        key: {**value, "output_path": absolute_paths(value["output_path"])}
        if key in _MONITORS and isinstance(value, Mapping) and "output_path" in value
        else value
        for key, value in settings.items()
    }


def in_each_choice(function: Callable[[Any], Any], value: Any) -> Any:
    """`function(value)`, or the same search of Tune's over the results for its choices."""
    if isinstance(value, dict) and set(value) == {"grid_search"}:
        return {"grid_search": [function(choice) for choice in value["grid_search"]]}
    if isinstance(value, Categorical):
        # The search keeps its sampler.
        value.categories = [function(choice) for choice in value.categories]
        return value
    return function(value)


def _is_hub_id(name: str) -> bool:
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
