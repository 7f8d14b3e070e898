"""Learners that keep the full gradient of every optimizer step."""

from rlhf_algos.learner.deepspeed_learner import DeepSpeedLearner


class RecordingLearner(DeepSpeedLearner):
    """Keeps the full gradient of every optimizer step."""

    def configure_optimizers_for_module(self, module_id, config=None):
        super().configure_optimizers_for_module(module_id, config)
        record_gradients(self)


def record_gradients(learner):
    """Wraps the engine's step; `learner.gradients` holds one dict by parameter name for each step."""
    learner.gradients = []
    step = learner.engine.step

    def recording_step(*args, **kwargs):
        from deepspeed.utils import safe_get_full_grad

        parameters = learner.causal_lm.named_parameters()
        learner.gradients.append({name: safe_get_full_grad(p).clone() for name, p in parameters})
        return step(*args, **kwargs)

    learner.engine.step = recording_step
