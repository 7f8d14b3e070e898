"""Every number of an update has a declared reduction over the training steps of an iteration."""

from rlhf_algos.driver.calls import on_learners
from rlhf_algos.metrics import LEARNER, is_listed
from tests.learner.conftest import make_batch


def test_all_metrics_of_an_update_with_a_penalty_are_declared(learners):
    batch = make_batch([3, 5, 2, 4])
    group = learners(kl_coefficient=0.1)
    metrics = on_learners(group, lambda learner: learner.update_from_rollouts(batch, env_steps_sampled=0))[0]
    assert {"pg_clipfrac", "reference_kl"} <= set(metrics)
    assert [name for name in metrics if not is_listed(f"{LEARNER}/{name}")] == []
