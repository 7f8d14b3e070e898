"""From an id, a class or a function to an environment, also where the user's code never ran."""

import importlib
import re
import subprocess
import sys
import textwrap

import cloudpickle
import gymnasium
import pytest
from gymnasium.error import UnregisteredEnv

import rlhf_algos.envs
from rlhf_algos.envs import Addition, PromptEnv, env_creator_for, make_prompt_env

ADDITION = "rlhf_algos/Addition-v0"


class Task(PromptEnv):
    def __init__(self, size=3, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def prompt(self, rng):
        return f"n={rng.integers(10**self.size)}"

    def reward(self, response):
        return 0.0


@pytest.fixture
def registered():
    gymnasium.register("test/Task-v2", Task, kwargs={"size": 5})
    yield "test/Task-v2"
    gymnasium.registry.pop("test/Task-v2", None)


def test_id_with_its_config():
    env = make_prompt_env(ADDITION, {"digits": 3, "split": "heldout"})
    assert type(env) is Addition and (env.digits, env.split, env.name) == (3, "heldout", ADDITION)
    assert make_prompt_env(ADDITION).unwrapped.digits == 2


def test_env_config_goes_over_the_registered_arguments(registered):
    assert make_prompt_env(registered).unwrapped.size == 5
    assert make_prompt_env(registered, {"size": 1}).unwrapped.size == 1
    assert gymnasium.spec(registered).kwargs == {"size": 5}


def test_class():
    env = make_prompt_env(Task, {"size": 2})
    assert type(env) is Task and env.size == 2 and env.name == "Task"


@pytest.mark.parametrize("name", ["lambda", "def", "object"])
def test_function_of_the_env_config(name):
    def make(env_config):
        return Task(**env_config)

    class Maker:
        def __call__(self, env_config):
            return make(env_config)

    env = make_prompt_env({"lambda": lambda c: Task(**c), "def": make, "object": Maker()}[name], {"size": 4})
    assert env.size == 4 and env.name == {"lambda": "function", "def": "make", "object": "Maker"}[name]


def test_wrappers_of_the_registration_are_kept():
    gymnasium.register("test/Limited-v0", Task, max_episode_steps=1)
    try:
        env = env_creator_for("test/Limited-v0")()
        assert isinstance(env, gymnasium.Wrapper) and type(env.unwrapped) is Task
    finally:
        del gymnasium.registry["test/Limited-v0"]


def test_each_call_makes_a_new_environment():
    creator = env_creator_for(ADDITION)
    assert creator() is not creator()


def test_importing_twice_registers_once():
    before = gymnasium.spec(ADDITION)
    importlib.reload(rlhf_algos.envs)
    rlhf_algos.envs.register_bundled()
    assert gymnasium.spec(ADDITION) is before


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [
        (
            "rlhf_algos/Additon-v0",
            "Environment `Additon` doesn't exist in namespace rlhf_algos. Did you mean: `Addition`?",
        ),
        ("rlhf_algo/Addition-v0", "Namespace rlhf_algo not found. Did you mean: `rlhf_algos`?"),
        ("qqqqqqqqqqq", "Environment `qqqqqqqqqqq` doesn't exist."),
    ],
)
def test_unknown_id(env_id, reason):
    message = (
        f"environment={env_id!r} is not registered with Gymnasium: {reason} Register it in the driver with "
        "gymnasium.register(id, entry_point=YourPromptEnv) before the config is built, or pass the class "
        "itself. This library's own: rlhf_algos/Addition-v0."
    )
    with pytest.raises(UnregisteredEnv, match=f"^{re.escape(message)}$"):
        env_creator_for(env_id)


def test_unversioned_and_malformed_ids_are_refused():
    for env_id in ("rlhf_algos/Addition", "a b", ""):
        with pytest.raises(UnregisteredEnv, match=f"^environment={env_id!r} is not registered"):
            env_creator_for(env_id)


@pytest.mark.parametrize("env", ["CartPole-v1", "class", "function"])
def test_not_a_prompt_env(env):
    cart_pole = gymnasium.make("CartPole-v1").unwrapped
    source = {"class": type(cart_pole), "function": lambda config: cart_pole}.get(env, env)
    name = {"class": "CartPoleEnv"}.get(env, env)
    message = (
        f"environment={name!r} makes a gymnasium.envs.classic_control.cartpole.CartPoleEnv, which is not a "
        "PromptEnv: derive it from rlhf_algos.envs.PromptEnv, with a prompt() and a reward()."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        make_prompt_env(source)


def test_function_that_makes_no_environment():
    with pytest.raises(TypeError, match=r"^environment='function' makes a builtins\.dict, which is not a PromptEnv"):
        make_prompt_env(lambda config: config)


@pytest.mark.parametrize("env", [None, 3, {"digits": 2}])
def test_nothing_to_make_an_environment_from(env):
    message = (
        f"environment={env!r} is a {type(env).__name__}: give a Gymnasium id, a PromptEnv class, or a "
        "function from the env_config to an environment."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        env_creator_for(env)


def test_module_prefix_imports_first(tmp_path, monkeypatch):
    (tmp_path / "my_tasks_module.py").write_text(
        "import gymnasium\nfrom rlhf_algos.envs import Addition\ngymnasium.register('test/Mine-v0', Addition)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert type(make_prompt_env("my_tasks_module:test/Mine-v0").unwrapped) is Addition
    finally:
        gymnasium.registry.pop("test/Mine-v0", None)


def test_creator_works_in_a_process_that_never_ran_the_users_code(tmp_path):
    """What Ray does: the driver's script defines and registers a task, an actor unpickles the creator."""
    driver = """
        import sys, cloudpickle, gymnasium
        from pathlib import Path
        from rlhf_algos.envs import PromptEnv, env_creator_for

        SUFFIX = "!"

        class Mine(PromptEnv):
            def prompt(self, rng):
                return f"n={rng.integers(100)}" + SUFFIX
            def reward(self, response):
                return 0.5

        gymnasium.register("mine/Task-v0", Mine)
        gymnasium.register("mine/Text-v0", "__main__:Mine")
        sources = {"id": "mine/Task-v0", "text": "mine/Text-v0", "class": Mine}
        sources["function"] = lambda config: Mine(**config)
        for name, env in sources.items():
            creator = env_creator_for(env, {"split": "heldout"})
            Path(sys.argv[1], name).write_bytes(cloudpickle.dumps(creator))
    """
    actor = """
        import sys, pickle
        from pathlib import Path
        env = pickle.loads(Path(sys.argv[1]).read_bytes())()
        prompt, _ = env.reset(seed=0)
        print(prompt[:2], prompt[-1], env.unwrapped.split, env.step("a")[1])
    """
    for_driver, for_actor = tmp_path / "driver.py", tmp_path / "actor.py"
    for_driver.write_text(textwrap.dedent(driver))
    for_actor.write_text(textwrap.dedent(actor))
    subprocess.run([sys.executable, for_driver, tmp_path], check=True)
    for name in ("id", "text", "class", "function"):
        run = subprocess.run([sys.executable, for_actor, tmp_path / name], check=True, capture_output=True, text=True)
        assert run.stdout == "n= ! heldout 0.5\n"


def test_creator_of_a_bundled_environment_survives_pickle():
    creator = cloudpickle.loads(cloudpickle.dumps(env_creator_for(ADDITION, {"digits": 1})))
    assert creator().unwrapped.digits == 1


def test_environments_load_no_engine():
    code = "import sys, rlhf_algos.envs; print([m for m in ('torch', 'vllm', 'ray', 'deepspeed') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "[]\n"
