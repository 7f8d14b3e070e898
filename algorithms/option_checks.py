"""Checks of each option by itself, made before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from rlhf_algos.algorithms.evaluation_settings import EVALUATION_KEYS
from rlhf_algos.algorithms.options import plain
from rlhf_algos.algorithms.paths import (
    absolute_channel_paths,
    absolute_deepspeed_paths,
    absolute_engine_paths,
    absolute_model,
    absolute_paths,
)
from rlhf_algos.algorithms.rllib_options import check_rllib_options
from rlhf_algos.driver.saved_batches import require_batch_files

if TYPE_CHECKING:
    from rlhf_algos.algorithms.config import LanguageModelAlgorithmConfig


def check_options(config: LanguageModelAlgorithmConfig) -> None:
    """Checks each option by itself, and makes its value plain: NumPy's numbers become Python's, paths absolute.

    Raises:
        ValueError: names the option and its value, and says what it must be or what to use instead.
    """
    config.language_model_path = absolute_model(config.language_model_path)
    config.save_batches = absolute_paths(config.save_batches)
    config.weight_channel = absolute_channel_paths(config.weight_channel)
    if isinstance(config.vllm_args, Mapping):
        config.vllm_args = absolute_engine_paths(config.vllm_args)
    if isinstance(config.deepspeed_config, Mapping):
        config.deepspeed_config = absolute_deepspeed_paths(config.deepspeed_config)
    options = config.declared_options()
    for name, option in options.items():
        setattr(config, name, option.checked(getattr(config, name)))
    if isinstance(config.evaluation_config, Mapping):
        config.evaluation_config = {
            key: options[key].checked(value, partial("evaluation(evaluation_config={{{!r}: {!r}}})".format, key))
            if key in options and key in EVALUATION_KEYS
            else plain(value)
            for key, value in config.evaluation_config.items()
        }
    check_rllib_options(config)
    _check_input(config)


def _check_input(config: LanguageModelAlgorithmConfig) -> None:
    """Saved batches are there, and something reads them; what stands in them is looked at when they are opened."""
    if config.offline_data_class is None:
        if config.input_ != "sampler":
            raise ValueError(f"input_={config.input_!r} is read by nothing: call offline_data(input_=...).")
        return
    config.input_ = absolute_paths(config.input_)
    try:
        require_batch_files(config.input_)
    except (OSError, TypeError) as error:
        raise ValueError(f"offline_data(input_={config.input_!r}): {error}") from error
