"""Replacing the weights of a vLLM model and showing that all of them arrived. **Reaches into vLLM 0.30.0.**

vLLM's layerwise reload puts each layer into checkpoint layout, buffers what the layer's loaders are given, and builds
the kernel's layout when the layer is whole. It is silent about a layer that never became whole, so that is shown here,
in three ways that together cover every parameter:

* *counted*: the loaders of a layer were given as many numbers as it has;
* *written in place*: some models (gpt-oss) write into parameters themselves, past the loaders, and the layerwise reload
  would lose what they write. Such a layer gets memory filled with NaN before the loading and must hold none after it;
* *named*: a parameter that vLLM neither buffers nor counts (a router's correction bias) must be among the names that
  the model reports as loaded.

The private names used here stand in the table of `rlhf_algos.rollout.vllm_private_parts`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

# Of each worker of this process, what is known about its model's loading.
_RELOADS: WeakKeyDictionary[Any, WeightReload] = WeakKeyDictionary()


def load_in_worker(worker: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Replaces the weights of one worker; what every worker of an engine runs (`LLMEngine.collective_rpc`).

    Args:
        worker: vLLM's.
        weights: tensors under checkpoint names.

    Raises:
        ValueError: see `WeightReload.load`.
    """
    reload = _RELOADS.get(worker)
    if reload is None:
        reload = _RELOADS[worker] = WeightReload(worker.get_model(), worker.vllm_config)
    reload.load(weights)


class WeightReload:
    """Replaces the weights of an engine's model, as often as wanted.

    Args:
        model: vLLM's, loaded.
        vllm_config: the engine's.

    Attributes:
        in_place: names of the layers that the model writes past their loaders, as far as loading showed them.
    """

    def __init__(self, model: nn.Module, vllm_config: Any) -> None:
        self._model = model
        self._vllm_config = vllm_config
        self.in_place: set[str] = set()
        self._in_place_is_known = False

    @torch.inference_mode()
    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Loads tensors under checkpoint names.

        Raises:
            ValueError: names every layer that was not written whole, and how much of it was. The model must not be
                used then; a whole set of weights can still be loaded into it.
        """
        if not self._in_place_is_known:
            # Which layers a model writes in place shows by loading once; they then are loaded again.
            weights = list(weights)
        missing, in_place = self._attempt(weights)
        if in_place and not self._in_place_is_known:
            self.in_place |= in_place
            missing, _ = self._attempt(weights)
        if missing:
            raise ValueError(
                f"The published weights do not fill the engine's layers {', '.join(missing)}. A tensor is missing, "
                "has another shape or holds NaN; this rollout actor is unusable until a whole set of weights arrives."
            )
        self._in_place_is_known = True

    def _attempt(self, weights: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[str], set[str]]:
        """Loads; returns what was not written, and the layers that were written past their loaders and are lost."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )
        from vllm.model_executor.model_loader.reload.layerwise import _layerwise_process, get_layerwise_info

        layers = dict(self._model.named_modules())
        # Before the reload gives each layer parameters of its own: a tied head has its embedding's.
        parameters = {name: _checkpoint_parameters(name, layer) for name, layer in layers.items()}
        with set_current_vllm_config(self._vllm_config):
            forget_expert_kernels(self._model)
            initialize_layerwise_reload(self._model)
            whole = False
            try:
                for name in self.in_place:
                    _fill_with_nan(name, layers[name])
                with cheap_progress(self._vllm_config):
                    # None if a part of the model does not report what it loaded.
                    reported = cast(Any, self._model).load_weights(iter(weights)) or set()
                waiting = not_counted(layers, parameters, self.in_place)
                passed_by = {name for name, numel, _ in waiting if numel == 0 and _reports(reported, layers, name)}
                missing = [f"{name} ({numel} of {wanted} numbers)" for name, numel, wanted in waiting]
                for name in sorted(self.in_place):
                    holes = _not_written(name, layers[name])
                    missing += holes
                    if not holes:
                        _layerwise_process(layers[name], get_layerwise_info(layers[name]))
                missing += _not_named(self._model, reported)
                whole = not missing
            finally:
                if not whole:
                    _drop_buffered(layers)
                # Also after an error: it leaves a structure into which a whole set of weights can be loaded.
                finalize_layerwise_reload(self._model, self._vllm_config.model_config)
                repack_tied_head(self._model)
        return missing, passed_by


def not_counted(
    layers: dict[str, nn.Module], parameters: dict[str, set[Any]], in_place: set[str]
) -> list[tuple[str, int, int]]:
    """Layers that still wait for numbers: name, numbers that came, numbers wanted.

    Args:
        layers: of the model, by name.
        parameters: of each layer, the marks of those that it has in checkpoint layout.
        in_place: layers that are written past their loaders, and counted nowhere.
    """
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    written: set[Any] = set()
    waiting = []
    for name, layer in layers.items():
        info = get_layerwise_info(layer)
        # vLLM resets the record of a layer as soon as it is whole.
        wanted = _numbers_wanted(layer, info.load_numel_total) if info.can_load() else 0
        if info.load_numel >= wanted or name in in_place:
            written |= parameters[name]
        else:
            waiting.append((name, int(info.load_numel), wanted))
    # Without parameters of its own (a rotary cache, a tied head, derived ones) a layer needs no tensor.
    return [(name, numel, wanted) for name, numel, wanted in waiting if parameters[name] - written]


def _checkpoint_parameters(name: str, layer: nn.Module) -> set[Any]:
    """Marks of the parameters that a layer has in checkpoint layout: two layers that share one have the same mark."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    names = set(get_layerwise_info(layer).restore_metadata[0])
    if layer._parameters.get("bias") is not None:
        # vLLM counts biases, although it does not restore them.
        names.add("bias")
    own = {each: layer._parameters.get(each) for each in names}
    return {(name, each) if parameter is None else id(parameter) for each, parameter in own.items()}


def _drop_buffered(layers: dict[str, nn.Module]) -> None:
    """Forgets what the layers that are not whole were given; vLLM then puts their last kernel tensors back.

    It would load it otherwise, and a tensor of a wrong shape would then fail again in every later update.
    """
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    for layer in layers.values():
        info = get_layerwise_info(layer)
        if info.can_load():
            info.loaded_weights.clear()
            info.load_numel = 0


def _numbers_wanted(layer: nn.Module, total: int) -> int:
    """Vocabulary rows are padded to a multiple of 64; no checkpoint has the padding."""
    if hasattr(layer, "num_embeddings_padded"):
        return total // layer.num_embeddings_per_partition * layer.org_vocab_size  # type: ignore[operator,return-value]
    return int(total)


def _reports(reported: set[str], layers: dict[str, nn.Module], name: str) -> bool:
    """Whether the model says that it loaded every parameter of a layer."""
    own = [f"{name}.{parameter}" for parameter, _ in _restored(layers[name])]
    return bool(own) and reported.issuperset(own)


def _restored(layer: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that the reload puts into checkpoint layout; a router's bias that a layer also holds is none."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    names = get_layerwise_info(layer).restore_metadata[0]
    return [(name, parameter) for name, parameter in layer.named_parameters(recurse=False) if name in names]


def _fill_with_nan(name: str, layer: nn.Module) -> None:
    """Gives a layer in checkpoint layout memory, and its parameters their plain loaders."""
    from vllm.model_executor.model_loader.reload.layerwise import _get_original_loader, get_layerwise_info
    from vllm.model_executor.model_loader.reload.meta import materialize_layer

    materialize_layer(layer, get_layerwise_info(layer))
    for parameter_name, parameter in _restored(layer):
        if not parameter.is_floating_point():
            raise ValueError(
                f"{name}.{parameter_name} is of {parameter.dtype} and written past vLLM's loaders: whether new weights "
                "arrived can't be shown. Start the sampler with weights that are not quantized."
            )
        parameter.data.fill_(float("nan"))
        cast(Any, parameter).weight_loader = _get_original_loader(parameter)


def _not_written(name: str, layer: nn.Module) -> list[str]:
    holes = []
    for parameter_name, parameter in _restored(layer):
        numel = int((~parameter.isnan()).sum())
        if numel < parameter.numel():
            holes.append(f"{name}.{parameter_name} ({numel} of {parameter.numel()} numbers)")
    return holes


def _not_named(model: nn.Module, reported: set[str]) -> list[str]:
    """Parameters that vLLM leaves out of its record and the model did not report, by their first name."""
    from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS

    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name.rpartition(".")[2] in SKIP_LOAD_TENSORS:
            names.setdefault(id(parameter), []).append(name)
    return [f"{of_one[0]} (not loaded)" for of_one in names.values() if reported.isdisjoint(of_one)]


@contextmanager
def cheap_progress(vllm_config: Any) -> Iterator[None]:
    """Counts a loaded tensor by its size.

    vLLM finds out how much of a layer a tensor fills by loading it twice, which takes a third of the time with many
    small experts. On a single device a tensor is always loaded whole.
    """
    from vllm.model_executor.model_loader.reload import layerwise

    if vllm_config.parallel_config.world_size > 1:
        yield
        return

    def whole_tensor(loader: Any, arguments: inspect.BoundArguments) -> tuple[int, bool]:
        return arguments.arguments["loaded_weight"].numel(), True

    original, layerwise.get_numel_loaded = layerwise.get_numel_loaded, whole_tensor
    try:
        yield
    finally:
        layerwise.get_numel_loaded = original


def forget_expert_kernels(model: nn.Module) -> None:
    """Makes the reload build expert kernels as the first load did, packing the new weights for the CPU."""
    if torch.cuda.is_available():
        return
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if method is not None and getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def repack_tied_head(model: nn.Module) -> None:
    """Packs an output head again whose weight is the embedding's: no tensor of its own arrived to trigger it."""
    if torch.cuda.is_available():
        return
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    embeddings = [m for m in model.modules() if isinstance(m, VocabParallelEmbedding)]
    shared = {id(m.weight) for m in embeddings if not isinstance(m, ParallelLMHead)}
    for head in embeddings:
        if isinstance(head, ParallelLMHead) and id(head.weight) in shared:
            head.quant_method.process_weights_after_loading(head)
