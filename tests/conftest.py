"""Shared fixtures: one Ray for the session, and small models with peaked routers."""

import os
import shutil
from pathlib import Path

# Before torch is imported anywhere: several processes share two cores.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RAY_DEDUP_LOGS"] = "0"

import hypothesis
import pytest

from rlhf_algos.local_ray import start_ray
from rlhf_algos.models import resolve_model

# On a machine that is shared, a time says nothing about the code.
hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")

# `make test` runs in two processes, one per core. Tests of one group run in one of them, since they share the engine or
# the learners that a fixture starts; files without such a fixture are a group of their own only where a test needs the
# machine's time. The groups that take longest begin.
GROUP_OF_FIXTURE = {
    "actors_for": "engines and learners",
    "learner_pool": "engines and learners",
    "first_run": "one algorithm",
    "nested_sweep": "nested sweep",
    "live": "saved batches",
    "running": "saved batches",
    "one_engine": "README",
}
GROUP_OF_FILE = {
    "test_evaluation_actors.py": "evaluation actors",
    "test_corrected_runs.py": "corrected runs",
    "test_architectures.py": "architectures",
    "test_vllm_engine.py": "vLLM",
    "test_browser.py": "browser",
    "test_wheel.py": "wheel",
    "test_tiny_moe.py": "tiny model",
    "test_published_weights.py": "published weights",
    "test_groups_of_tests.py": "groups",
}
# Tests of `algorithms` and `analysis` have learners in this process, which those of `rollout` leave without vLLM's
# process group.
LONGEST_FIRST = (
    "end_to_end",
    "learner",
    "docs",
    "examples",
    "algorithms",
    "analysis",
    "rollout",
    "commands",
    "packaging",
)


# First: pytest-xdist reads the groups in a hook of its own, and one that comes later means nothing to it.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Puts tests that share processes into one group, and folders with the longest ones first."""

    def rank(item):
        folder = item.path.parent.name
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=rank)
    for item in items:
        groups = [group for fixture, group in GROUP_OF_FIXTURE.items() if fixture in item.fixturenames]
        group = groups[0] if groups else GROUP_OF_FILE.get(item.path.name)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def ray_session():
    """A Ray whose CPUs are tokens: the tests' processes take turns on the real cores."""
    import ray

    start_ray(
        num_cpus=8,
        log_to_driver=False,
        logging_level="error",
        # Workers unpickle functions that the tests define.
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1])}},
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def learner_pool(ray_session):
    """A function that gives a LearnerGroup for a config: processes are started once, and rebuilt for each config.

    Starting one takes longer than most tests; `DeepSpeedLearner.rebuild` leaves nothing of the last config. Learners
    that a test ended are started again.
    """
    # Here, so that tests without learners do not wait for DeepSpeed to be imported.
    from rlhf_algos.driver.calls import on_learners
    from rlhf_algos.envs import make_prompt_env
    from tests.recording_learners import RecordingLearner

    started = {}
    env = make_prompt_env("rlhf_algos/Addition-v0")
    spaces = {"default_policy": (env.observation_space, env.action_space)}

    def get(config):
        key = config.num_learners
        config.learners(learner_class=RecordingLearner)
        spec = config.get_multi_rl_module_spec(spaces=spaces)
        alive = list(started[key].foreach_learner(lambda learner: None)) if key in started else []
        if len(alive) == config.num_learners:
            on_learners(started[key], lambda learner: learner.rebuild(config, spec))
        else:
            started[key] = config.build_learner_group(rl_module_spec=spec)
        return started[key]

    yield get
    for group in started.values():
        group.shutdown()


def write_peaked_model(path: Path, *, tied: bool, model_type: str = "qwen3") -> Path:
    """A random MoE with the bundled tokenizer, on which a wrong route or expert moves log-probs visibly."""
    import torch
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    source = Path(resolve_model("rlhf_algos/tiny-moe"))
    shared = {
        "vocab_size": 263,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "moe_intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "decoder_sparse_step": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    if model_type == "qwen3":
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(head_dim=32, **shared))
    else:
        model = Qwen2MoeForCausalLM(Qwen2MoeConfig(shared_expert_intermediate_size=32, **shared))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(source / name, path / name)
    return path


@pytest.fixture(scope="session")
def peaked_models(tmp_path_factory) -> dict[str, Path]:
    """Random models by name: "tied", "untied" (Qwen3-MoE) and "shared-expert" (Qwen2-MoE); and the "bundled" one."""
    root = tmp_path_factory.mktemp("models")
    return {
        "tied": write_peaked_model(root / "tied", tied=True),
        "untied": write_peaked_model(root / "untied", tied=False),
        "shared-expert": write_peaked_model(root / "shared-expert", tied=False, model_type="qwen2"),
        "bundled": Path(resolve_model("rlhf_algos/tiny-moe")),
    }
