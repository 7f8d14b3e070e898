"""Which modules of a model choose experts, and how to get at their choice.

The choice is replaced where the architecture makes it, inside the router's own forward, and everything after it is the
architecture's own code: gates are recomputed from the live router logits by its own rule (MATH 6.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rlhf_algos.routing_replay.choice import Choose, ReplacedTopK

# Where transformers' configurations keep the number of experts of a layer.
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")


@dataclass(frozen=True)
class RouterAdapter:
    """How to read and replace the expert choice of one class of router.

    Most routers call `torch.topk` on `[tokens, experts]` and have `top_k` and `num_experts`: for those
    `register_router_adapter(RouterAdapter(TheirRouter))` is all. Otherwise override the method that differs:
    `top_k` or `num_experts` for other attribute names, `is_choice` if the choice is made on another shape or the
    router calls `torch.topk` on the same shape twice, `run` if it doesn't call `torch.topk` at all.

    Attributes:
        router_class: the module's class, or its dotted path ("package.module.Class"), which spares the import. It may
            also be the block around the router, if that is where the choice is made.
    """

    router_class: type[nn.Module] | str

    @property
    def router_path(self) -> str:
        """The dotted path of the router's class."""
        return self.router_class if isinstance(self.router_class, str) else _path_of(self.router_class)

    def top_k(self, router: nn.Module) -> int:
        """Experts that a token is sent to."""
        return int(router.top_k)  # type: ignore[arg-type]

    def num_experts(self, router: nn.Module) -> int:
        """Experts to choose from."""
        return int(router.num_experts)  # type: ignore[arg-type]

    def is_choice(self, router: nn.Module, scores: Tensor, k: int) -> bool:
        """Tells whether this call of `torch.topk` chooses the experts.

        Group-limited routers first choose groups, on `[tokens, groups]` and `[tokens, groups, experts of a group]`.
        """
        return scores.dim() == 2 and scores.shape[-1] == self.num_experts(router) and k == self.top_k(router)

    def run(
        self,
        router: nn.Module,
        forward: Callable[..., Any],
        choose: Choose,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Runs the router with another choice.

        Args:
            router: the module.
            forward: its own forward.
            choose: maps the live choice `[tokens, top_k]` (integers) to the experts to use, of the same shape. To be
                called exactly once.
            args, kwargs: of the forward.

        Returns:
            What the forward returns.
        """
        with ReplacedTopK(choose, lambda scores, k: self.is_choice(router, scores, k)):
            return forward(*args, **kwargs)


@dataclass(frozen=True)
class FoundRouter:
    """A router within a model.

    Attributes:
        name: its name in `model.named_modules()`.
        module: the router.
        adapter: how to replace its choice.
        decoder_layer: index of the decoder layer it belongs to, from its name; None if the name doesn't tell.
    """

    name: str
    module: nn.Module
    adapter: RouterAdapter
    decoder_layer: int | None


ADAPTERS: dict[str, RouterAdapter] = {}


def register_router_adapter(adapter: RouterAdapter, *, replace: bool = False) -> RouterAdapter:
    """Makes an architecture known, in this process.

    A learner runs in a process of its own: register in the module that `router_replay` names by its dotted path
    (`class MyR3(R3): ...` beside the registration), which every learner imports.

    Args:
        adapter: for one router class.
        replace: allow that the class is registered already.

    Raises:
        TypeError: not a `RouterAdapter`.
        ValueError: the class is registered already.
    """
    if not isinstance(adapter, RouterAdapter):
        raise TypeError(f"register_router_adapter takes a RouterAdapter, got {adapter!r}.")
    if adapter.router_path in ADAPTERS and not replace:
        raise ValueError(f"{adapter.router_path} has an adapter already; pass replace=True to exchange it.")
    ADAPTERS[adapter.router_path] = adapter
    return adapter


def known_routers() -> list[str]:
    """Dotted paths of the router classes that have an adapter."""
    return sorted(ADAPTERS)


def find_routers(model: nn.Module) -> tuple[FoundRouter, ...]:
    """The routers of a model, in the order of its layers.

    Raises:
        ValueError: the model is dense, or (part of) its mixture-of-experts layers have a router without an adapter.
    """
    found = tuple(
        FoundRouter(name, module, adapter, _decoder_layer(name))
        for name, module in model.named_modules()
        if (adapter := _adapter_of(module)) is not None
    )
    unknown = next(_uncovered_blocks(model, found), None)
    kind = type(model).__name__
    if unknown is None and not found and _counts_experts(model):
        unknown = ("", model)
    if unknown is not None:
        name, block = unknown
        place = f" ({name}: {type(block).__name__})" if name else ""
        raise ValueError(
            f"{kind} is a mixture-of-experts model with a router that routing replay does not know{place}. "
            "Register an adapter for it (rlhf_algos.routing_replay.register_router_adapter, shown in "
            "examples/my_router_adapter.py), or set router_replay='none'. Known routers: "
            f"{', '.join(path.rpartition('.')[2] for path in known_routers())}."
        )
    if not found:
        raise ValueError(
            f"{kind} is a dense model: it has no router, so there are no routes to replay. "
            "Set router_replay='none', or train a mixture-of-experts model."
        )
    return found


def _adapter_of(module: nn.Module) -> RouterAdapter | None:
    for cls in type(module).__mro__:
        adapter = ADAPTERS.get(_path_of(cls))
        if adapter is not None:
            return adapter
    return None


def _path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _decoder_layer(name: str) -> int | None:
    indices = [int(part) for part in name.split(".") if part.isdigit()]
    return indices[0] if len(indices) == 1 else None


def _uncovered_blocks(model: nn.Module, found: tuple[FoundRouter, ...]) -> Iterator[tuple[str, nn.Module]]:
    """Blocks that hold `experts` but no router that we know: transformers names the experts so everywhere."""
    covered = {router.name for router in found} | {router.name.rpartition(".")[0] for router in found}
    modules = dict(model.named_modules())
    for name in modules:
        block, _, last = name.rpartition(".")
        if last == "experts" and block not in covered:
            yield block or type(model).__name__, modules[block]


def _counts_experts(model: nn.Module) -> bool:
    config = getattr(model, "config", None)
    return any((getattr(config, name, None) or 0) > 1 for name in _EXPERT_COUNTS)


# Each of these calls torch.topk once on [tokens, experts]; the group-limited ones (GLM-4-MoE, DeepSeek-V3) before that
# twice on groups. Their bias and their scale act outside of the choice, so the module's own code applies them.
for _module, _class in (
    ("qwen3_moe", "Qwen3MoeTopKRouter"),
    ("qwen2_moe", "Qwen2MoeTopKRouter"),
    ("mixtral", "MixtralTopKRouter"),
    ("olmoe", "OlmoeTopKRouter"),
    ("glm4_moe", "Glm4MoeTopkRouter"),
    ("deepseek_v3", "DeepseekV3TopkRouter"),
    ("gpt_oss", "GptOssTopKRouter"),
):
    register_router_adapter(RouterAdapter(f"transformers.models.{_module}.modeling_{_module}.{_class}"))
