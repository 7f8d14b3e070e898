"""What a report draws: the sections of its charts, and which of the metrics are in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf_algos.metrics import EVALUATION, LEARNER, ROLLOUT, STALENESS, TIMERS, Metric, metric_of


@dataclass(frozen=True)
class Section:
    """Charts that belong together.

    Attributes:
        name: short and without spaces, for file names and links.
        title: heading.
        about: one or two sentences on how to read the charts.
        metrics: one chart each.
    """

    name: str
    title: str
    about: str
    metrics: tuple[Metric, ...]


SECTIONS = (
    Section(
        "reward",
        "Reward",
        "Mean reward over the responses that were trained on.",
        (metric_of(f"{ROLLOUT}/episode_return_mean"),),
    ),
    Section(
        "held-out",
        "Held-out accuracy",
        "Mean reward over the evaluation's problems, the fraction solved where a reward is 0 or 1. They are those of "
        "the held-out split, which is never trained on, unless evaluation_config asks for another. Sampled: answered "
        "as in training. Greedy: answered with the most probable tokens.",
        (
            metric_of(f"{EVALUATION}/episode_return_mean"),
            metric_of(f"{EVALUATION}/greedy_return_mean"),
            metric_of(f"{EVALUATION}/sampler_episode_return_mean"),
            metric_of(f"{EVALUATION}/sampler_greedy_return_mean"),
        ),
    ),
    Section(
        "mismatch",
        "Mismatch between trainer and sampler",
        "How far apart the trainer's p0 and the sampler's q are on the trained tokens, on logarithmic axes; exact "
        "agreement (0) has no place on them and is left out.",
        (
            metric_of(f"{LEARNER}/train_rollout_logprob_abs_diff"),
            metric_of(f"{LEARNER}/mismatch_kl"),
            metric_of(f"{LEARNER}/train_rollout_logprob_abs_diff_max"),
        ),
    ),
    Section(
        "clip-fraction",
        "Clip fraction",
        "Fraction of the trained tokens whose weight the correction changed, where there is one, and of those (with "
        "GSPO, of the responses) whose gradient the policy clip removed.",
        (
            metric_of(f"{LEARNER}/tis_clipfrac"),
            metric_of(f"{LEARNER}/pg_clipfrac"),
        ),
    ),
    Section(
        "routes",
        "Route mismatch",
        "Fraction of trained tokens x layers whose recorded set of experts is not the trainer's own choice, and of "
        "those whose recorded experts were replayed.",
        (
            metric_of(f"{LEARNER}/route_mismatch"),
            metric_of(f"{LEARNER}/replayed_fraction"),
        ),
    ),
    Section(
        "staleness",
        "Staleness",
        "Age of the trained tokens in weight versions; 0 when sampling and training take turns.",
        (metric_of(f"{STALENESS}/mean"), metric_of(f"{STALENESS}/max")),
    ),
    Section(
        "head-mass",
        "Head masses",
        "Probability of the recorded head (or support) of the distribution under each policy, with score centering.",
        (
            metric_of(f"{LEARNER}/rollout_head_mass"),
            metric_of(f"{LEARNER}/trainer_head_mass"),
        ),
    ),
    Section(
        "response-length",
        "Response length",
        "Tokens per response, the end token included, and the fraction that a length limit ended.",
        (
            metric_of(f"{ROLLOUT}/response_length_mean"),
            metric_of(f"{ROLLOUT}/truncated_fraction"),
        ),
    ),
    Section(
        "entropy",
        "Entropy",
        "Entropy of the trainer's next-token distribution at the sampler's temperature, over trained tokens.",
        (metric_of(f"{LEARNER}/entropy"),),
    ),
    Section(
        "ess",
        "Effective sample size",
        "Of the importance ratios rho = p0 / q, as a fraction of the tokens: (sum rho)^2 / (N sum rho^2). 1: "
        "equal policies.",
        (metric_of(f"{LEARNER}/ess"),),
    ),
    Section(
        "time",
        "Time per phase",
        "Seconds of one iteration spent in each phase.",
        (
            metric_of(f"{TIMERS}/sample"),
            metric_of(f"{TIMERS}/learner_update"),
            metric_of(f"{TIMERS}/weight_sync"),
        ),
    ),
)

#: Whether an evaluation's problems are not trained on, 1 or 0 (docs/evaluation.md).
IS_HELD_OUT = f"{EVALUATION}/held_out"


def as_evaluated(metric: Metric) -> Metric:
    """A metric of an evaluation that is not known to be held out."""
    return replace(metric, label=metric.label.replace("held-out", "evaluated"))


_EVALUATED = Section(
    "evaluated",
    "Evaluation, not known to be held out",
    "Mean reward over the evaluation's problems. At least one of these runs trained on problems of the split that it "
    "evaluated, or does not say which split that was. Sampled: answered as in training. Greedy: answered with the most "
    "probable tokens.",
    tuple(as_evaluated(metric) for section in SECTIONS if section.name == "held-out" for metric in section.metrics),
)


def sections_for(*, held_out: bool) -> tuple[Section, ...]:
    """The sections, whose evaluation is only called held-out if it was in every run."""
    if held_out:
        return SECTIONS
    return tuple(_EVALUATED if section.name == "held-out" else section for section in SECTIONS)


def overview_of(sections: Sequence[Section]) -> Section:
    """The picture to look at first: reward beside mismatch."""
    reward, evaluation, mismatch = sections[:3]
    metrics = (reward.metrics[0], evaluation.metrics[0], mismatch.metrics[0], mismatch.metrics[1])
    return Section("overview", "Reward beside mismatch", "", metrics)
