"""The KL penalty on responses that vLLM really sampled from a truncated distribution."""

import pytest


@pytest.mark.parametrize("sampling", [{"top_p": 0.75}, {"top_k": 4}])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_before_the_first_step_the_reference_is_the_policy(loop_for, sampling, kind):
    """Policy and reference are the same weights, so they are the same distribution on the tokens that were left."""
    metrics = loop_for("untied", lr=0.0, kl_coefficient=0.1, kl_kind=kind, **sampling).iterate()
    assert abs(metrics["reference_kl"]) < 1e-6
    assert metrics["train_rollout_logprob_abs_diff"] < 2e-6


def test_after_a_step_it_is_not(loop_for):
    loop = loop_for("untied", lr=1e-2, kl_coefficient=0.1, top_p=0.75)
    assert loop.iterate()["reference_kl"] < 1e-6
    assert loop.iterate()["reference_kl"] > 1e-4


def test_the_reference_is_not_replayed(loop_for):
    """With R3 the policy takes the sampler's experts, the reference its own: docs/grpo.md gives the size of that."""
    options = {"lr": 0.0, "kl_coefficient": 0.1}
    replayed = loop_for("untied", "bfloat16", router_replay="r3", **options).iterate()
    live = loop_for("untied", "bfloat16", **options).iterate()
    assert replayed["route_mismatch"] > 0
    assert abs(live["reference_kl"]) < 1e-6 < replayed["reference_kl"]
