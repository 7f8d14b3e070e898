"""Numbers of an evaluation."""

from __future__ import annotations

from rlhf_algos.metrics.metric import COUNT, EVALUATION, FRACTION, REWARD, TEXT, Metric

OF_EVALUATIONS = (
    Metric(
        f"{EVALUATION}/episode_return_mean",
        "mean reward over the first `evaluation_duration` problems, each answered once by sampling",
        REWARD,
        label="held-out, sampled",
        heading="held-out",
        in_table=True,
    ),
    Metric(f"{EVALUATION}/episode_return_min", "smallest reward", REWARD),
    Metric(f"{EVALUATION}/episode_return_max", "largest reward", REWARD),
    Metric(
        f"{EVALUATION}/greedy_return_mean",
        "the same problems answered with the most probable tokens",
        REWARD,
        label="held-out, greedy",
        heading="greedy",
        in_table=True,
    ),
    Metric(f"{EVALUATION}/response_length_mean", "tokens per sampled answer, the end token included"),
    Metric(f"{EVALUATION}/truncated_fraction", "sampled answers that reached a length limit", FRACTION),
    Metric(f"{EVALUATION}/num_episodes", "problems in the mean: all that were asked for", COUNT),
    Metric(f"{EVALUATION}/split", "the split that was played", TEXT),
    Metric(f"{EVALUATION}/held_out", "1 if none of its problems is trained on", COUNT),
    Metric(f"{EVALUATION}/weight_version", "of the weights that answered", COUNT),
    Metric(f"{EVALUATION}/unscorable_responses", "problems that nobody could score; they count with reward 0", COUNT),
    Metric(f"{EVALUATION}/prompts_too_long", "problems whose prompt left no room; they count with reward 0", COUNT),
    Metric(
        f"{EVALUATION}/sampler_episode_return_mean",
        "the sampled mean by the sampler's policy, if a mismatch is injected",
        REWARD,
        label="held-out, sampled from the injected sampler",
    ),
    Metric(
        f"{EVALUATION}/sampler_greedy_return_mean",
        "the greedy mean by the sampler's policy, if a mismatch is injected",
        REWARD,
        label="held-out, greedy by the injected sampler",
    ),
)
