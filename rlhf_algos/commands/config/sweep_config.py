"""The configuration of a sweep: a run's, with grids, seeds and how Tune goes through them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_algos.commands.config.config_file import ConfigFile
from rlhf_algos.commands.config.grids import Path as GridPath
from rlhf_algos.commands.config.grids import cells, check_grids, dotted, replaced
from rlhf_algos.commands.config.run_config import RunConfig, read_run_config
from rlhf_algos.commands.config.sections import SECTIONS, call_sections, require_known
from rlhf_algos.commands.config.value_types import described, fits
from rlhf_algos.commands.errors import ConfigError

_SETTINGS = {"max_concurrent": int | None, "stop": dict[str, float], "scheduler": dict[str, Any]}
_SEED: GridPath = ("debugging", "seed")
_ROUTES: GridPath = ("sampling", "record_routes")


@dataclass(frozen=True)
class SweepConfig:
    """A configuration file with grids.

    Attributes:
        run: with grids among its values.
        grids: choices by path.
        max_concurrent: trials at a time; None for as many as the resources allow.
        stop: a trial ends when a metric reaches its value.
        scheduler: type and arguments of an early-stopping scheduler, or None.
        note: what was changed, for the user; empty if nothing.
    """

    run: RunConfig
    grids: Mapping[GridPath, list[Any]]
    max_concurrent: int | None
    stop: Mapping[str, float]
    scheduler: Mapping[str, Any] | None
    note: str = ""

    def trials(self) -> list[tuple[dict[GridPath, Any], RunConfig]]:
        """Every combination: the choices and the run's configuration without a grid."""
        return [
            (choices, replace(self.run, sections=replaced(self.run.sections, choices))) for choices in cells(self.grids)
        ]

    def labels(self) -> dict[GridPath, str]:
        """A short name for every grid, long enough to tell them apart."""
        lasts = [path[-1] for path in self.grids]
        return {path: str(path[-1]) if lasts.count(path[-1]) == 1 else dotted(path) for path in self.grids}

    def param_space(self) -> tuple[dict[str, Any], dict[str, str]]:
        """What Tune goes through: the config as a dict with `tune.grid_search`, and a label for each of its paths."""
        from ray import tune

        labels = {}
        for path, choices in self.grids.items():
            firsts = {other: values[0] for other, values in self.grids.items() if other != path}
            alone = self._config(firsts | {path: tune.grid_search(choices)})
            found = list(_searches(alone))
            if len(found) != 1:
                raise ConfigError(
                    f"{self.run.file.place(dotted(path))}: the algorithm's config does not keep this value."
                )
            labels[found[0]] = self.labels()[path]
        space = self._config({path: tune.grid_search(choices) for path, choices in self.grids.items()})
        return space, labels

    def _config(self, choices: Mapping[GridPath, Any]) -> dict[str, Any]:
        config = replace(self.run, sections={}).new_config()
        call_sections(config, replaced(self.run.sections, choices), self.run.file)
        given = (self.run.sections.get("evaluation") or {}).get("evaluation_interval")
        if self.run.evaluate_every and given is None:
            config.evaluation(evaluation_interval=self.run.evaluate_every)
        return dict(config.to_dict())

    def validate(self) -> None:
        """Validates the config of every trial, so that none fails on a wrong option in the middle of the night.

        Raises:
            ConfigError: names the trial.
        """
        for choices, run in self.trials():
            try:
                run.build()
            except ConfigError as error:
                trial = ", ".join(f"{dotted(path)}={value!r}" for path, value in choices.items())
                raise ConfigError(f"{error}\nThis is the trial with {trial}." if trial else str(error)) from error

    def scheduler_object(self) -> Any:
        """Tune's scheduler, None for trials that all run to their end."""
        if self.scheduler is None:
            return None
        from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule

        # Others pause trials and need checkpoints of them.
        types = {"asha": ASHAScheduler, "median": MedianStoppingRule}
        settings = dict(self.scheduler)
        kind = settings.pop("type", None)
        if kind not in types:
            raise ConfigError(
                f"{self.run.file.place('sweep.scheduler.type')} must be one of {', '.join(types)}, got {kind!r}."
            )
        for key in settings:
            require_known("sweep.scheduler", key, inspect.signature(types[kind]).parameters, self.run.file)
        for key in ("metric", "mode"):
            if key not in settings:
                raise ConfigError(f"{self.run.file.place('sweep.scheduler')}: {key} is missing.")
        defaults = {"time_attr": "training_iteration"} | ({"max_t": self.run.iterations} if kind == "asha" else {})
        try:
            return types[kind](**defaults | settings)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"{self.run.file.place('sweep.scheduler')}: {error}") from error

    def write(self, path: Path) -> None:
        """Writes a configuration file that means the same, `--set` included."""
        content = self.run.top_level() | dict(self.run.sections)
        # The seeds stand among the grids.
        content["sweep"] = {"max_concurrent": self.max_concurrent, "stop": dict(self.stop)}
        if self.scheduler is not None:
            content["sweep"]["scheduler"] = dict(self.scheduler)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_sweep_config(path: str | Path, overrides: Sequence[str] = (), *, iterations: int | None = None) -> SweepConfig:
    """Reads a sweep's configuration; values inside the sections are checked by `validate`.

    Raises:
        ConfigError: names the file and the key.
    """
    run = read_run_config(path, overrides, iterations=iterations, further={"seeds": list[int], "sweep": dict[str, Any]})
    file = run.file
    settings = file.content.get("sweep") or {}
    for key, value in settings.items():
        require_known("sweep", key, _SETTINGS, file)
        if not fits(value, _SETTINGS[key]):
            raise ConfigError(f"{file.place(f'sweep.{key}')} must be {described(_SETTINGS[key])}, got {value!r}.")
    for key, value in (settings.get("stop") or {}).items():
        if not fits(value, float):
            raise ConfigError(f"{file.place(f'sweep.stop.{key}')} must be a number, got {value!r}.")
    if (at_once := settings.get("max_concurrent")) is not None and at_once < 1:
        raise ConfigError(f"{file.place('sweep.max_concurrent')} must be at least 1 or null.")
    run = _with_seeds(run, file)
    run, note = _with_routes(run, file)
    return SweepConfig(
        run=run,
        grids=check_grids(run.sections, file),
        max_concurrent=settings.get("max_concurrent", 1),
        stop=settings.get("stop") or {},
        scheduler=settings.get("scheduler"),
        note=note,
    )


def _with_seeds(run: RunConfig, file: ConfigFile) -> RunConfig:
    seeds = file.content.get("seeds")
    if seeds is None:
        return run
    if (run.sections.get("debugging") or {}).get("seed") is not None:
        raise ConfigError(f"{file.place('seeds')} and debugging.seed both set the seed; keep one.")
    return _with_value(run, _SEED, {"grid": seeds})


def _with_routes(run: RunConfig, file: ConfigFile) -> tuple[RunConfig, str]:
    """An engine records routes or does not, so trials with and without R3 could not share one.

    Without a replay recorded routes are not trained on; they show the route mismatch of every trial.
    """
    choices = dict(check_grids(run.sections, file)).get(("training", "router_replay"))
    if choices is None or (run.sections.get("sampling") or {}).get("record_routes") is not None:
        return run, ""
    from rlhf_algos.routing_replay import make_router_replay

    try:
        recording = {make_router_replay(choice).uses_rollout_routes for choice in choices}
    except (ValueError, TypeError, ImportError):
        # `validate` says what is wrong with it.
        return run, ""
    if recording != {True, False}:
        return run, ""
    note = "All trials record routes (sampling.record_routes: true), so that those with and without R3 share an engine."
    return _with_value(run, _ROUTES, True), note


def _with_value(run: RunConfig, path: GridPath, value: Any) -> RunConfig:
    section, key = str(path[0]), str(path[1])
    changed = {**run.sections, section: {**(run.sections.get(section) or {}), key: value}}
    return replace(run, sections={name: changed[name] for name in SECTIONS if name in changed})


def _searches(value: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Where `tune.grid_search` stands in a config's dict, as Tune writes the place."""
    if isinstance(value, Mapping):
        if set(value) == {"grid_search"}:
            return ["/".join(path)]
        return [place for key, item in value.items() for place in _searches(item, (*path, str(key)))]
    if isinstance(value, list | tuple):
        return [place for number, item in enumerate(value) for place in _searches(item, (*path, str(number)))]
    return []
