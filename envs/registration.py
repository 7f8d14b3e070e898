"""From a name, a class or a function to an environment, here or in a process that has no registry."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator, registry
from gymnasium.error import UnregisteredEnv

from rlhf_algos.envs.prompt_env import PromptEnv
from rlhf_algos.envs.spaces import Prompt

EnvFactory = Callable[[dict[str, Any]], gymnasium.Env[Prompt, str]]
"""A function from the env_config to an environment, as RLlib's `register_env` takes it."""

EnvSource = str | type[PromptEnv] | EnvFactory
"""A Gymnasium id, a `PromptEnv` class, or a function from the env_config to an environment."""

BUNDLED = {"rlhf_algos/Addition-v0": "rlhf_algos.envs.addition:Addition"}


def register_bundled() -> None:
    """Register this library's environments with Gymnasium, those that aren't yet."""
    for env_id, entry_point in BUNDLED.items():
        if env_id not in registry:
            gymnasium.register(env_id, entry_point, order_enforce=False, disable_env_checker=True)


@dataclass(frozen=True)
class EnvCreator:
    """Makes one environment each time it is called.

    Holds the class or function itself and its arguments, not a name to look up, so that a copy pickled by
    Ray works in a process where nobody registered the environment.
    """

    spec: EnvSpec

    def __call__(self) -> gymnasium.Env[Prompt, str]:
        """A new environment.

        Raises:
            TypeError: What was made is not a `PromptEnv`, or its constructor does not know an env_config key.
        """
        try:
            env = gymnasium.make(self.spec, disable_env_checker=True)
        except (TypeError, ValueError) as error:
            error.add_note(f"while making environment={self.spec.id!r} with env_config={dict(self.spec.kwargs)!r}")
            raise
        if not isinstance(env.unwrapped, PromptEnv):
            raise TypeError(not_a_prompt_env(self.spec.id, type(env.unwrapped)))
        return env


@dataclass(frozen=True)
class FactoryCall:
    """Calls an RLlib style factory, which takes one dict, with keyword arguments, as Gymnasium does."""

    factory: EnvFactory

    def __call__(self, **env_config: Any) -> gymnasium.Env[Prompt, str]:
        """`factory(env_config)`."""
        env = self.factory(env_config)
        # Gymnasium sets `spec` on what it gets, and fails without a word of explanation on anything else.
        if not isinstance(env, gymnasium.Env):
            raise TypeError(not_a_prompt_env(factory_name(self.factory), type(env)))
        return env


def env_creator_for(
    env: EnvSource, env_config: Mapping[str, Any] | None = None, *, known: Mapping[str, EnvSpec] | None = None
) -> EnvCreator:
    """Resolve an environment once, in the process that knows it, into a function that others can call.

    Args:
        env: A Gymnasium id ("namespace/Name-v0", or "module:Name-v0" to import the module first), a
            `PromptEnv` class, or a function from the env_config to an environment.
        env_config: Keyword arguments of the environment; for a function, its one argument.
        known: What ids mean, where it was said elsewhere; this process is asked for all others.

    Returns:
        A function of no arguments that makes the environment. Ray's pickle can send it to an actor.

    Raises:
        UnregisteredEnv: Unknown id, with the closest known one.
        TypeError: `env` is none of the above.
    """
    kwargs = dict(env_config or {})
    if isinstance(env, str):
        spec = (known or {}).get(env) or registered_spec(env)
        entry_point: Any = spec.entry_point
        if isinstance(entry_point, str):
            entry_point = load_env_creator(entry_point)
        if isinstance(entry_point, type) and not issubclass(entry_point, PromptEnv):
            raise TypeError(not_a_prompt_env(env, entry_point))
        return EnvCreator(replace(spec, entry_point=entry_point, kwargs={**spec.kwargs, **kwargs}))
    if isinstance(env, type):
        if not issubclass(env, PromptEnv):
            raise TypeError(not_a_prompt_env(env.__name__, env))
        return EnvCreator(unregistered_spec(env.__name__, env, kwargs))
    if callable(env):
        return EnvCreator(unregistered_spec(factory_name(env), FactoryCall(env), kwargs))
    raise TypeError(
        f"environment={env!r} is a {type(env).__name__}: give a Gymnasium id, a PromptEnv class, or a "
        "function from the env_config to an environment."
    )


def make_prompt_env(env: EnvSource, env_config: Mapping[str, Any] | None = None) -> gymnasium.Env[Prompt, str]:
    """Makes one environment: `env_creator_for(env, env_config)()`.

    Wrappers that the environment was registered with (a time limit, say) are around it;
    `.unwrapped` is the `PromptEnv`.
    """
    return env_creator_for(env, env_config)()


def registered_spec(env_id: str) -> EnvSpec:
    """Gymnasium's spec of a registered id, or raises UnregisteredEnv with the closest known id."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise UnregisteredEnv(
            f"environment={env_id!r} is not registered with Gymnasium: {error} Register it in the driver "
            "with gymnasium.register(id, entry_point=YourPromptEnv) before the config is built, or pass the "
            f"class itself. This library's own: {', '.join(sorted(BUNDLED))}."
        ) from error


def registered(names: Iterable[Any]) -> dict[str, EnvSpec]:
    """What the ids among the names mean in this process, for one in which they are not registered."""
    known = gymnasium.envs.registration.registry
    ids = {name: name.rpartition(":")[2] for name in names if isinstance(name, str)}
    return {name: known[env_id] for name, env_id in ids.items() if env_id in known}


def unregistered_spec(name: str, entry_point: Callable[..., Any], kwargs: dict[str, Any]) -> EnvSpec:
    """A spec for something that was never registered."""
    return EnvSpec(id=name, entry_point=entry_point, order_enforce=False, disable_env_checker=True, kwargs=kwargs)


def factory_name(factory: EnvFactory) -> str:
    """A name that Gymnasium accepts as an id; a lambda and a partial have none of their own."""
    name = getattr(factory, "__name__", type(factory).__name__)
    return "function" if name == "<lambda>" else name


def not_a_prompt_env(name: str, found: type) -> str:
    """The sentence for an environment of the wrong class."""
    return (
        f"environment={name!r} makes a {found.__module__}.{found.__qualname__}, which is not a PromptEnv: "
        "derive it from rlhf_algos.envs.PromptEnv, with a prompt() and a reward()."
    )
