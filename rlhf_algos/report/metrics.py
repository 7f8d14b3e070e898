"""What a report draws: the sections of its charts, and the metrics in each (docs/metrics.md has their meaning)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

ROLLOUT = "env_runners/"
EVALUATION = "evaluation/env_runners/"
_LEARNER = "learners/default_policy/"


@dataclass(frozen=True)
class Metric:
    """One chart.

    Attributes:
        key: flat name of the metric in a result.
        label: what the chart is called.
        logarithmic: whether its axis is.
        in_table: whether the table of final values has it.
    """

    key: str
    label: str
    logarithmic: bool = False
    in_table: bool = False

    @property
    def of_evaluation(self) -> bool:
        """Whether an evaluation measures it, thus not every iteration does."""
        return self.key.startswith(EVALUATION)


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
        (Metric(f"{ROLLOUT}episode_return_mean", "training reward", in_table=True),),
    ),
    Section(
        "held-out",
        "Held-out accuracy",
        "Mean reward over the evaluation's problems, the fraction solved where a reward is 0 or 1. They are those of "
        "the held-out split, which is never trained on, unless evaluation_config asks for another. Sampled: answered "
        "as in training. Greedy: answered with the most probable tokens.",
        (
            Metric(f"{EVALUATION}episode_return_mean", "held-out, sampled", in_table=True),
            Metric(f"{EVALUATION}greedy_return_mean", "held-out, greedy", in_table=True),
            Metric(f"{EVALUATION}sampler_episode_return_mean", "held-out, sampled from the injected sampler"),
            Metric(f"{EVALUATION}sampler_greedy_return_mean", "held-out, greedy by the injected sampler"),
        ),
    ),
    Section(
        "mismatch",
        "Mismatch between trainer and sampler",
        "How far apart the trainer's p0 and the sampler's q are on the trained tokens, on logarithmic axes; exact "
        "agreement (0) has no place on them and is left out.",
        (
            Metric(f"{_LEARNER}train_rollout_logprob_abs_diff", "mean |log p0 - log q|", True, True),
            Metric(f"{_LEARNER}mismatch_kl", "KL(q, p0), k3 estimate", True, True),
            Metric(f"{_LEARNER}train_rollout_logprob_abs_diff_max", "largest |log p0 - log q|", True),
        ),
    ),
    Section(
        "clip-fraction",
        "Clip fraction",
        "Fraction of the trained tokens whose weight the correction changed, where there is one, and of those whose "
        "gradient the policy clip removed.",
        (
            Metric(f"{_LEARNER}tis_clipfrac", "weight changed (tis_clipfrac)", in_table=True),
            Metric(f"{_LEARNER}pg_clipfrac", "policy clip (pg_clipfrac)"),
        ),
    ),
    Section(
        "routes",
        "Route mismatch",
        "Fraction of trained tokens x layers whose recorded set of experts is not the trainer's own choice, and of "
        "those whose recorded experts were replayed.",
        (
            Metric(f"{_LEARNER}route_mismatch", "route mismatch", in_table=True),
            Metric(f"{_LEARNER}replayed_fraction", "replayed fraction"),
        ),
    ),
    Section(
        "staleness",
        "Staleness",
        "Age of the trained tokens in weight versions; 0 when sampling and training take turns.",
        (Metric("staleness/mean", "mean age of tokens"), Metric("staleness/max", "largest age of a token")),
    ),
    Section(
        "head-mass",
        "Head masses",
        "Probability of the recorded head (or support) of the distribution under each policy, with score centering.",
        (
            Metric(f"{_LEARNER}rollout_head_mass", "head mass under the sampler, q"),
            Metric(f"{_LEARNER}trainer_head_mass", "head mass under the trainer, p"),
        ),
    ),
    Section(
        "response-length",
        "Response length",
        "Tokens per response, the end token included, and the fraction that a length limit ended.",
        (
            Metric(f"{ROLLOUT}response_length_mean", "tokens per response", in_table=True),
            Metric(f"{ROLLOUT}truncated_fraction", "truncated fraction"),
        ),
    ),
    Section(
        "entropy",
        "Entropy",
        "Entropy of the trainer's next-token distribution at the sampler's temperature, over trained tokens.",
        (Metric(f"{_LEARNER}entropy", "entropy in nats", in_table=True),),
    ),
    Section(
        "ess",
        "Effective sample size",
        "Of the importance ratios rho = p0 / q, as a fraction of the tokens: (sum rho)^2 / (N sum rho^2). 1: "
        "equal policies.",
        (Metric(f"{_LEARNER}ess", "effective sample size", in_table=True),),
    ),
    Section(
        "time",
        "Time per phase",
        "Seconds of one iteration spent in each phase.",
        (
            Metric("timers/sample", "seconds sampling"),
            Metric("timers/learner_update", "seconds updating"),
            Metric("timers/weight_sync", "seconds syncing weights"),
        ),
    ),
)

#: Whether an evaluation's problems are not trained on, 1 or 0 (docs/evaluation.md).
IS_HELD_OUT = f"{EVALUATION}held_out"

_EVALUATED = Section(
    "evaluated",
    "Evaluation, not known to be held out",
    "Mean reward over the evaluation's problems. At least one of these runs trained on problems of the split that it "
    "evaluated, or does not say which split that was. Sampled: answered as in training. Greedy: answered with the most "
    "probable tokens.",
    tuple(
        replace(metric, label=metric.label.replace("held-out", "evaluated"))
        for section in SECTIONS
        if section.name == "held-out"
        for metric in section.metrics
    ),
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
