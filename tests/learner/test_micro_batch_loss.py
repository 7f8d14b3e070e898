"""What stands around a token loss: the corrector's weights, and the names and denominators of its metrics."""

import dataclasses
from typing import ClassVar

import pytest
import torch

from rlhf_algos.algorithms.gspo import SequenceSurrogate
from rlhf_algos.corrections import TIS
from rlhf_algos.learner.loss import MicroBatchLoss
from rlhf_algos.learner.packing import make_micro_batch
from rlhf_algos.learner.settings import LearnerSettings
from rlhf_algos.learner.statistics import TokenStatistics
from rlhf_algos.learner.token_loss import TokenLoss
from rlhf_algos.metrics import LEARNER, METRICS
from rlhf_algos.objectives import reinforce_loss
from rlhf_algos.objectives.chunked_logprobs import ChunkedLogprobs
from tests.learner.conftest import make_batch


@dataclasses.dataclass(frozen=True)
class Measured(TokenLoss):
    """REINFORCE that knows of no weights, and what it is told to measure."""

    metrics: tuple[str, ...] = ()

    def __call__(self, tokens):
        assert tokens.weights is None
        return reinforce_loss(tokens.logprobs, tokens.advantages), dict.fromkeys(self.metrics, tokens.rollout_logprobs)


@dataclasses.dataclass(frozen=True)
class WeighsItself(TokenLoss):
    """Twice the weight."""

    weighs_itself: ClassVar[bool] = True

    def __call__(self, tokens):
        return 2 * tokens.weights * reinforce_loss(tokens.logprobs, tokens.advantages), {}


def micro_batch_of(batch, **options):
    rows = torch.arange(batch.num_response_tokens)
    return make_micro_batch(batch, rows=rows, loss_weights=torch.ones(len(rows)) / 8, **options)


def loss_of(token_loss, batches, logprobs=None):
    """Loss and metrics of micro-batches under TIS."""
    statistics = TokenStatistics()
    settings = LearnerSettings(token_loss, model="none", corrector=TIS(high=2.0))
    loss = MicroBatchLoss(settings, reference=None, vocabulary_size=300, statistics=statistics)
    total = torch.zeros(())
    for batch in batches:
        current = batch.rollout_logprobs + 0.5 if logprobs is None else logprobs[batch.sample_ids]
        total = total + loss(batch, ChunkedLogprobs(current, None, torch.zeros_like(current)))
    return total, statistics.reduce()[0]


def test_a_loss_that_does_not_know_of_weights_is_weighed():
    batch = micro_batch_of(make_batch([3, 5]))
    current = batch.rollout_logprobs + 0.5
    weights = torch.full((8,), 0.5).exp()
    plain = -(weights * batch.advantages * current).sum() / 8
    total, metrics = loss_of(Measured(), [batch])
    assert total.item() == pytest.approx(plain.item(), rel=1e-5)
    assert metrics["tis_weight"] == pytest.approx(weights[0].item(), rel=1e-5)
    assert loss_of(WeighsItself(), [batch])[0].item() == pytest.approx(2 * plain.item(), rel=1e-5)


OTHERS = [metric.name for metric in METRICS if metric.place == LEARNER and not metric.of_token_loss]


@pytest.mark.parametrize("name", [*OTHERS, "route_mismatch_layer_3", "signal/kept", "mine/count"])
def test_a_metric_of_the_learners_own_is_refused(name):
    with pytest.raises(ValueError, match=f"returned a metric '{name}', which (is the name of another|has a slash)"):
        loss_of(Measured((name,)), [micro_batch_of(make_batch([3, 5]))])


def test_other_names_are_means_over_trained_tokens():
    assert {"entropy", "tis", "reference_kl", "loss", "ess"} <= set(OTHERS)
    batch = make_batch([3, 5])
    _, metrics = loss_of(Measured(("mine", "pg_clipfrac")), [micro_batch_of(batch)])
    assert metrics["mine"] == metrics["pg_clipfrac"] == pytest.approx(float(batch.rollout_logprobs.mean()), rel=1e-6)


@pytest.mark.parametrize("parts", [[[0, 1, 2]], [[0], [1, 2]], [[2], [1], [0]]])
def test_a_clipped_response_counts_once_in_gspo(parts):
    """Nine tokens clipped beside one that is not, and a response that is not trained on: 0.5, not 0.9."""
    whole = make_batch([9, 1, 4], masked=[2], advantages=[1.0, 1.0, 1.0])
    batches = [
        micro_batch_of(selected, old_logprobs=torch.full((selected.num_response_tokens,), -1.0))
        for selected in (whole.select(part) for part in parts)
    ]
    # Ratios e^0.1, beyond the bound, and e^-0.1.
    logprobs = torch.zeros(200)
    logprobs[100:103] = torch.tensor([-0.9, -1.1, -0.9])
    assert loss_of(SequenceSurrogate(), batches, logprobs)[1]["pg_clipfrac"] == 0.5
