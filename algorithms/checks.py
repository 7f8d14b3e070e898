"""Checks of combinations of options, made before anything is started."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from transformers import AutoConfig

from rlhf_algos.algorithms.engine_options import check_engine_arguments
from rlhf_algos.algorithms.paths import (
    require_model_folder,
)
from rlhf_algos.corrections import NoCorrection, check_corrector
from rlhf_algos.learner.deepspeed_settings import deepspeed_settings
from rlhf_algos.routing_replay import moe_layers
from rlhf_algos.weight_sync import channel_maker

if TYPE_CHECKING:
    from rlhf_algos.algorithms.config import LanguageModelAlgorithmConfig
    from rlhf_algos.learner.settings import LearnerSettings

logger = logging.getLogger(__name__)


def check_config(config: LanguageModelAlgorithmConfig) -> None:
    """Raises ValueError on the first option or combination that can't work; its text says what to do."""
    _check_language_model(config)
    _check_rollouts(config)
    _check_training(config)
    _check_rllib_options(config)
    deepspeed_settings(
        zero_stage=config.zero_stage,
        bfloat16=config.trainer_dtype == "bfloat16",
        offload_optimizer=config.offload_optimizer,
        grad_clip=config.grad_clip,
        overrides=config.deepspeed_config,
    )


def _check_language_model(config: LanguageModelAlgorithmConfig) -> None:
    require_model_folder(config.language_model_path)
    config.model_path()


def _check_rollouts(config: LanguageModelAlgorithmConfig) -> None:
    sampling = config.sampling_settings()
    if not config.in_evaluation:
        sampling.for_training()
    check_engine_arguments(config.vllm_args)
    channel_maker(config.weight_channel)
    config.mismatch_injected()
    if config.env is None:
        raise ValueError("No environment: call environment('rlhf_algos/Addition-v0') or give a PromptEnv class.")


def _check_training(config: LanguageModelAlgorithmConfig) -> None:
    needs_length = config.loss_reduction == "seq-mean-token-sum-norm"
    if needs_length != (config.loss_fixed_length is not None):
        raise ValueError(
            f"training(loss_reduction={config.loss_reduction!r}, loss_fixed_length={config.loss_fixed_length}): the "
            "fixed length belongs to 'seq-mean-token-sum-norm', and only to it."
        )
    settings = config.learner_settings()
    check_corrector(settings.corrector)
    _warn_of_uncorrected_steps(config, settings)
    _check_routes(config)


def _warn_of_uncorrected_steps(config: LanguageModelAlgorithmConfig, settings: LearnerSettings) -> None:
    """Warns if later optimizer steps of an iteration train on samples of an older policy as if they were on-policy."""
    # A loss with a ratio of its own, p / p0, accounts for these steps.
    if config.in_evaluation or settings.token_loss.corrects == "old" or settings.corrector != NoCorrection():
        return
    responses = config.prompts_per_iteration * config.group_size
    if config.num_epochs > 1 or (config.minibatch_size or responses) < responses:
        logger.warning(
            "training(num_epochs=%s, minibatch_size=%s, corrector='none'): from the second optimizer step of an "
            "iteration on the samples are those of an older policy, and this loss has no ratio of its own to account "
            "for it. Use a corrector ('tis', 'icepop', ...), or one step: num_epochs=1 and minibatch_size=None.",
            config.num_epochs,
            config.minibatch_size,
        )


def _check_routes(config: LanguageModelAlgorithmConfig) -> None:
    """Raises if routes are wanted of a model whose routers can't be found."""
    if not (config.replay().replays or config.records_routes()):
        return
    model_config = AutoConfig.from_pretrained(config.model_path(), trust_remote_code=config.trust_remote_code)
    try:
        moe_layers(model_config, trust_remote_code=config.trust_remote_code)
    except ValueError as error:
        raise ValueError(
            f"training(router_replay={config.router_replay!r}), sampling(record_routes={config.record_routes}) with "
            f"language_model({config.language_model_path!r}): {error}"
        ) from error


def _check_rllib_options(config: LanguageModelAlgorithmConfig) -> None:
    """RLlib options that mean something else here, or nothing."""
    if config.grad_clip is not None and config.grad_clip_by != "global_norm":
        raise ValueError(f"training(grad_clip_by={config.grad_clip_by!r}): DeepSpeed clips by 'global_norm' only.")
    if config.num_env_runners < 1 and config.is_online and not config.in_evaluation:
        raise ValueError(
            f"env_runners(num_env_runners={config.num_env_runners}): at least one rollout actor is needed; a vLLM "
            "engine in the driver's own process would share its threads and memory with everything else there."
        )
    if config.is_multi_agent:
        raise ValueError("multi_agent(...): an algorithm of this library trains one language model.")
    if config.evaluation_parallel_to_training and config.evaluation_num_env_runners < 1:
        raise ValueError("evaluation(evaluation_parallel_to_training=True) needs evaluation_num_env_runners >= 1.")
    if config.evaluation_duration_unit != "episodes":
        raise ValueError(
            f"evaluation(evaluation_duration_unit={config.evaluation_duration_unit!r}): use 'episodes'; "
            "evaluation_duration is the number of problems."
        )
