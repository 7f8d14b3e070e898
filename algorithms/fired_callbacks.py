"""Callbacks, of which those that would never be called are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback

from rlhf_algos.algorithms.rllib_options import require_fired_callbacks


class FiredCallbacks(Algorithm):
    """An `Algorithm` that looks at its callbacks when they are made, and calls them by the name of the event."""

    _callbacks: Sequence[RLlibCallback] = ()
    _held_back = False

    @property
    def callbacks(self) -> list[RLlibCallback]:
        """The objects that the configured callback classes, or other callables, made; empty while they hear nothing."""
        return [] if self._held_back else list(self._callbacks)

    @callbacks.setter
    def callbacks(self, callbacks: list[RLlibCallback]) -> None:
        # RLlib sets them before it starts anything; what a function makes can't be seen before that.
        for callback in callbacks:
            require_fired_callbacks(type(callback))
        self._callbacks = callbacks

    def call_back(self, event: str, **arguments: Any) -> None:
        """Calls what was configured for an event, such as "on_evaluate_start"."""
        arguments |= {"algorithm": self, "metrics_logger": self.metrics}
        make_callback(event, self.callbacks, getattr(self.config, f"callbacks_{event}"), kwargs=arguments)

    @contextmanager
    def no_callbacks(self, config: AlgorithmConfig) -> Iterator[None]:
        """While this lasts, nobody hears `on_algorithm_init`: RLlib's `setup` calls it before a run has its parts.

        Args:
            config: that RLlib sets up.
        """
        # Past the freeze: afterwards the configuration is as it was.
        fields, name = vars(config), "callbacks_on_algorithm_init"
        given, fields[name], self._held_back = fields[name], None, True
        try:
            yield
        finally:
            fields[name], self._held_back = given, False
