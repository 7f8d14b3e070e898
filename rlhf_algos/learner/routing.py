"""Which routes are replayed in which pass of an update, and how far they are from the trainer's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.learner.packing import MicroBatch
from rlhf_algos.learner.statistics import TokenStatistics
from rlhf_algos.routing_replay import ReplayScope, RouteReplayer, RouterReplay, route_dtype, route_mismatch


class Routing:
    """A `RouterReplay`, applied to the passes of one update.

    Args:
        replayer: of the trainer's model; None if the configuration handles no routes.
        replay: what is replayed.
        statistics: gets `route_mismatch`, the same per layer, and `replayed_fraction`.
    """

    def __init__(self, replayer: RouteReplayer | None, replay: RouterReplay, statistics: TokenStatistics) -> None:
        self._replayer = replayer
        self._replay = replay
        self._statistics = statistics

    @property
    def num_experts(self) -> int | None:
        """Experts to choose from, or None if routes play no part."""
        return None if self._replayer is None else self._replayer.num_experts

    @property
    def needs_old_policy_pass(self) -> bool:
        """Whether the old-policy pass must take place even before a single optimizer step (MATH 6.5)."""
        return self._replay.records_in_old_policy_pass

    def require_routes(self, batch: RolloutBatch) -> None:
        """Raises ValueError if the batch lacks the routes that are to be replayed, or they are of another model."""
        if self._replay.uses_rollout_routes and batch.routes is None:
            raise ValueError(
                f"training(router_replay={self._replay}): the batch has no routes. Sample it with this option, or with "
                "sampling(record_routes=True)."
            )
        if self._replayer is None or batch.routes is None:
            return
        expected = (self._replayer.num_layers, self._replayer.top_k)
        if batch.routes.shape[1:] != expected:
            raise ValueError(
                f"The batch's routes have {batch.routes.shape[1]} layers and {batch.routes.shape[2]} experts each; "
                f"the trainer's model has {expected[0]} mixture-of-experts layers and {expected[1]} experts."
            )

    @contextmanager
    def of(self, batch: MicroBatch, *, measured: bool, old_policy: bool = False) -> Iterator[ReplayScope | None]:
        """The scope of one forward pass.

        Args:
            batch: what the pass is about.
            measured: compare the recorded routes with the live ones. Once per update is enough, and with R2 only the
                old-policy pass still has the sampler's.
            old_policy: the pass of p0: what the trainer itself recorded is not there yet.
        """
        if self._replayer is None:
            yield None
            return
        replays = self._replay.uses_rollout_routes or (self._replay.records_in_old_policy_pass and not old_policy)
        routes = self._replay.select(batch.routes) if replays and batch.routes is not None else None
        with self._replayer.replaying(routes) as scope:
            yield scope
        if measured and batch.routes is not None:
            self._measure(batch, scope)

    def _measure(self, batch: MicroBatch, scope: ReplayScope) -> None:
        """Over the rows that predict the trained tokens (MATH 6)."""
        rows = batch.sequences.predicting
        assert batch.routes is not None
        differs = route_mismatch(batch.routes, scope.live_routes)[rows].double()
        self._statistics.add_mean("route_mismatch", differs.mean(1), batch.loss_mask)
        for layer in range(differs.shape[1]):
            self._statistics.add_mean(f"route_mismatch_layer_{layer}", differs[:, layer], batch.loss_mask)
        replayed = scope.replayed.to(rows.device)[rows].double().mean(1)
        self._statistics.add_mean("replayed_fraction", replayed, batch.loss_mask)

    def recorder(self, batch: RolloutBatch) -> RouteRecorder | None:
        """Keeps the trainer's own routes, if the updates replay them."""
        if not self._replay.records_in_old_policy_pass or self._replayer is None:
            return None
        return RouteRecorder(batch, self._replayer)


class RouteRecorder:
    """Collects the routes of the old-policy pass in the form in which a batch holds recorded ones (MATH 6.5)."""

    def __init__(self, batch: RolloutBatch, replayer: RouteReplayer) -> None:
        lengths = batch.prompt_lengths + batch.response_lengths
        self._starts = dict(
            zip(batch.sample_ids.tolist(), (np.cumsum(lengths - 1) - (lengths - 1)).tolist(), strict=True)
        )
        self._dtype = route_dtype(replayer.num_experts)
        self._routes = torch.zeros(int((lengths - 1).sum()), replayer.num_layers, replayer.top_k, dtype=torch.int64)
        # A row that no rank fills must not look like one of expert 0 twice.
        self._filled = torch.zeros(len(self._routes), dtype=torch.int64)

    def add(self, batch: MicroBatch, live: torch.Tensor) -> None:
        """Adds the live routes `[N, L, E]` of a micro-batch's packed tokens."""
        first_tokens = torch.cumsum(batch.sequences.lengths, 0) - batch.sequences.lengths
        for sample, first, length in zip(
            batch.packed_sample_ids.tolist(), first_tokens.tolist(), batch.sequences.lengths.tolist(), strict=True
        ):
            start = self._starts[sample]
            self._routes[start : start + length - 1] = live[first : first + length - 1].cpu()
            self._filled[start : start + length - 1] = 1

    def routes(self, sum_over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
        """`[R, L, E]` of all samples, from all ranks; samples that are not trained on get experts 0, 1, ..."""
        routes, filled = sum_over_ranks(self._routes), sum_over_ranks(self._filled)
        routes[filled == 0] = torch.arange(routes.shape[2])
        return routes.numpy().astype(self._dtype)
