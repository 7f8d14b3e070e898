"""The engine on a real vLLM: what it does, and every private part of vLLM that it needs.

One engine serves all tests: a mixture of experts with a tied head and a vocabulary without padding.
"""

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from benchmarks.architecture_models import write_model
from rlhf_algos.rollout import vllm_weights
from rlhf_algos.rollout.engine import GenerationRequest
from rlhf_algos.rollout.vllm_checks import check_rotary_positions, check_sinks, check_tied_head
from rlhf_algos.rollout.vllm_engine import VLLM_VERSION, VLLMEngine
from rlhf_algos.rollout.vllm_private_parts import PRIVATE_PARTS
from rlhf_algos.rollout.vllm_weights import WeightReload

EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
PROMPT = list(range(20, 60))
EXACT = 1e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "qwen3_moe", tied=True, vocabulary=512)


@pytest.fixture(scope="module")
def engine(folder):
    """In this process; everything that starting it changes here is as before when the module's tests are over."""
    environment, disabled = dict(os.environ), torch._dynamo.config.disable
    threads = torch.get_num_threads()
    arguments = {"dtype": "float32", "max_model_len": 64, "seed": 0, "skip_tokenizer_init": True}
    # A prompt fills a block, so that there is something to cache.
    arguments |= {"block_size": 32, "num_gpu_blocks_override": 128}
    yield VLLMEngine(str(folder), arguments, record_routes=True)
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()
    os.environ.clear()
    os.environ.update(environment)
    torch._dynamo.config.disable = disabled
    torch.set_num_threads(threads)


@pytest.fixture
def tensors(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture
def whole(engine, tensors):
    """The engine, which has the folder's weights again after the test."""
    yield engine
    engine.abort_all()
    engine.load(tensors.items())


def moved(tensors, seed):
    """Other weights under the same names."""
    generator = torch.Generator().manual_seed(seed)
    return {name: t + 0.05 * torch.randn(t.shape, generator=generator) for name, t in tensors.items()}


def request(key, seed, *, prompt=PROMPT, tokens=8, head=0):
    return GenerationRequest(
        key=key,
        prompt_ids=prompt,
        max_tokens=tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        num_logprobs=head,
        stop_token_ids=(),
        seed=seed,
    )


def generate(engine, *requests):
    for each in requests:
        engine.add(each)
    finished = {}
    while engine.num_running:
        finished |= dict(engine.step())
    return [finished[each.key] for each in requests]


def trainer_logprobs(folder, tensors, generation, tmp_path):
    """log p of the generated tokens by transformers with the given weights, `[T]`, and of all tokens `[T, V]`."""
    shutil.copy(folder / "config.json", tmp_path / "config.json")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = torch.tensor([generation.prompt_ids + generation.token_ids])
    with torch.no_grad():
        everything = model(ids).logits[0, len(generation.prompt_ids) - 1 : -1].log_softmax(-1)
    return everything.gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0], everything


def model_of(engine):
    (model,) = engine.llm.apply_model(lambda model: model)
    return model


@pytest.fixture
def distance(whole, folder, tmp_path):
    """A function: mean |log p - log q| between transformers with some weights and the engine as it is."""

    def measure(tensors):
        (generation,) = generate(whole, request("distance", 1, tokens=16))
        expected, _ = trainer_logprobs(folder, tensors, generation, tmp_path)
        return float((expected - torch.tensor(generation.logprobs)).abs().mean())

    return measure


# ---- behaviour ------------------------------------------------------------------------------------------------------


def test_every_update_arrives_whole(whole, tensors, distance):
    """Attention, packed experts, the tied head that has no tensor of its own: again and again."""
    assert "lm_head.weight" not in tensors
    for seed in range(3):
        new = moved(tensors, seed)
        assert distance(new) > 1e-3
        whole.load(new.items())
        assert distance(new) < EXACT


@pytest.mark.parametrize(
    "name, layer",
    [
        (EXPERT, r"model\.layers\.1\.mlp\.experts\.routed_experts \(47104 of 49152 numbers\)"),
        ("model.embed_tokens.weight", r"model\.embed_tokens \(0 of 32768 numbers\), .*lm_head \(0 of 32768 numbers\)"),
        ("model.norm.weight", r"layers model\.norm \(0 of 64 numbers\)\."),
        ("model.layers.0.self_attn.k_proj.weight", r"layers\.0\.self_attn\.qkv_proj \(6144 of 8192 numbers\)"),
    ],
)
def test_an_incomplete_set_is_refused_and_a_whole_one_mends_it(whole, tensors, distance, name, layer):
    new = moved(tensors, 1)
    with pytest.raises(ValueError, match=layer):
        whole.load(item for item in new.items() if item[0] != name)
    whole.load(new.items())
    assert distance(new) < EXACT


def test_a_tensor_of_another_shape_is_named_and_a_whole_set_mends_it(whole, tensors, distance):
    new = moved(tensors, 1)
    with pytest.raises(ValueError, match=r"layers model\.norm \(32 of 64 numbers\)\."):
        whole.load((new | {"model.norm.weight": torch.ones(32)}).items())
    whole.load(new.items())
    assert distance(new) < EXACT


def test_the_prefix_cache_is_dropped_with_the_weights(whole, tensors, monkeypatch):
    generate(whole, request("first", 1))
    before = whole.cached_prompt_tokens
    generate(whole, request("second", 2))
    assert whole.cached_prompt_tokens > before
    whole.load(tensors.items())
    before = whole.cached_prompt_tokens
    generate(whole, request("third", 3))
    assert whole.cached_prompt_tokens == before
    with monkeypatch.context() as patch:
        patch.setattr(whole.llm, "reset_prefix_cache", lambda: False)
        with pytest.raises(RuntimeError, match="did not drop its prefix cache"):
            whole.load(tensors.items())


def test_routes_do_not_depend_on_the_prefix_cache(whole, tensors):
    """The same tokens have the same routes, whether their prompt was computed or a part of it found in the cache."""
    prompts = [PROMPT, PROMPT, PROMPT[:34] + list(range(100, 114))]
    together = [request(f"cached-{i}", i // 2, prompt=prompt) for i, prompt in enumerate(prompts)]
    before = whole.cached_prompt_tokens
    # One after the other, so that the next finds the first one's blocks.
    cached = [generate(whole, each)[0] for each in together]
    assert whole.cached_prompt_tokens - before >= 2 * 32
    before, computed = whole.cached_prompt_tokens, []
    for each in together:
        whole.load(tensors.items())
        computed += generate(whole, replace(each, key=f"computed-{each.key}"))
    assert whole.cached_prompt_tokens == before
    for found, expected in zip(cached, computed, strict=True):
        assert found.token_ids == expected.token_ids
        routes = [np.sort(np.concatenate(each.route_rows), -1) for each in (found, expected)]
        assert len(routes[0]) == len(found.prompt_ids) + len(found.token_ids) - 1
        assert np.array_equal(*routes)


def test_weights_wait_for_running_requests(whole, tensors):
    whole.add(request("running", 1))
    with pytest.raises(RuntimeError, match="while 1 requests are running"):
        whole.load(tensors.items())


def test_another_version_is_refused_before_anything_starts(engine, folder, monkeypatch):
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.31.0")
    with pytest.raises(RuntimeError, match=rf"drives vLLM {VLLM_VERSION} .*installed is 0\.31\.0"):
        VLLMEngine(str(folder), {}, record_routes=False)


def test_a_head_that_vllm_does_not_tie_is_refused(engine):
    """OLMoE, GLM-4-MoE, DeepSeek-V3 and gpt-oss: nothing would fill their head."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    class Head(ParallelLMHead):
        def __init__(self, weight):
            nn.Module.__init__(self)
            self.weight = weight

    model, tied, untied = nn.Module(), SimpleNamespace(tie_word_embeddings=True), SimpleNamespace()
    model.embed, model.lm_head = nn.Embedding(4, 2), Head(nn.Parameter(torch.zeros(4, 2)))
    check_tied_head(model, untied)
    with pytest.raises(ValueError, match="vLLM's Module does not tie its output head"):
        check_tied_head(model, tied)
    model.lm_head = Head(model.embed.weight)
    check_tied_head(model, tied)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's kernels take other dtypes too")
def test_sinks_are_refused_in_float32(engine):
    model = nn.Module()
    model.attention = nn.Module()
    model.attention.sinks = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    check_sinks(model)
    model.attention.sinks = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=r"set vllm\(dtype='bfloat16'\)"):
        check_sinks(model)


# ---- loading, on models of a few numbers ----------------------------------------------------------------------------


class Toy(nn.Module):
    """An embedding, a head that is tied or not, a router's bias, and a layer that is written past its loaders."""

    def __init__(self, *, tied):
        super().__init__()
        self.embed, self.lm_head, self.gate, self.experts = nn.Module(), nn.Module(), nn.Module(), nn.Module()
        self.embed.weight = nn.Parameter(torch.zeros(4, 2))
        self.lm_head.weight = self.embed.weight if tied else nn.Parameter(torch.zeros(4, 2))
        self.experts.weight = nn.Parameter(torch.zeros(3, 2))
        self.gate.e_score_correction_bias = nn.Parameter(torch.zeros(3))
        self.experts.e_score_correction_bias = self.gate.e_score_correction_bias

    def load_weights(self, weights):
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        parameters, loaded = dict(self.named_parameters()), set()
        for name, tensor in weights:
            parameter = parameters[name]
            if name == "experts.weight":
                parameter.data[: len(tensor)].copy_(tensor)
            else:
                getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
            loaded.add(name)
        return loaded


@pytest.fixture
def toy(engine):
    """A function that makes a toy model that can be reloaded, its reload, and weights for it."""
    from vllm.model_executor.model_loader.reload.layerwise import record_metadata_for_reloading

    def make(*, tied=False):
        model = Toy(tied=tied)
        record_metadata_for_reloading(model)
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        new = {name: torch.arange(1.0, 1 + shape.numel()).view(shape) for name, shape in shapes.items()}
        return model, WeightReload(model, engine.llm.vllm_config), new

    return make


@pytest.mark.parametrize("tied", [True, False])
def test_a_missing_head_is_refused_unless_it_is_tied(toy, tied):
    model, reload, new = toy(tied=tied)
    assert ("lm_head.weight" in new) == (not tied)
    for _ in range(3):
        new = {name: tensor + 1 for name, tensor in new.items()}
        reload.load(new.items())
        assert all(torch.equal(parameter, new[name]) for name, parameter in model.named_parameters())
    new.pop("lm_head.weight", None)
    if tied:
        reload.load(new.items())
    else:
        with pytest.raises(ValueError, match=r"layers lm_head \(0 of 8 numbers\)\."):
            reload.load(new.items())


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda new: new.pop("experts.weight"), r"experts \(0 of 6 numbers\)|experts\.weight \(0 of 6 numbers\)"),
        (lambda new: new.update({"experts.weight": torch.ones(2, 2)}), r"experts\.weight \(4 of 6 numbers\)"),
        (lambda new: new["experts.weight"].view(-1)[:1].fill_(float("nan")), r"experts\.weight \(5 of 6 numbers\)"),
        (lambda new: new.pop("gate.e_score_correction_bias"), r"e_score_correction_bias \(not loaded\)"),
    ],
)
@pytest.mark.parametrize("loaded_before", [True, False])
def test_what_no_count_covers_is_shown_to_be_whole(toy, change, message, loaded_before):
    """First thing of all, or after a whole set: and a whole set mends it."""
    model, reload, new = toy()
    if loaded_before:
        reload.load(new.items())
    broken = {name: tensor.clone() for name, tensor in new.items()}
    change(broken)
    with pytest.raises(ValueError, match=message):
        reload.load(broken.items())
    new = {name: tensor + 5 for name, tensor in new.items()}
    for _ in range(2):
        reload.load(new.items())
        assert all(torch.equal(parameter, new[name]) for name, parameter in model.named_parameters())


# ---- the private parts ----------------------------------------------------------------------------------------------

GUARDS = {}


def guards(key):
    """Registers the test of an entry of PRIVATE_PARTS."""

    def register(function):
        GUARDS[key] = function
        return function

    return register


@pytest.fixture
def tools(whole, tensors, folder, toy, distance, monkeypatch, tmp_path):
    return SimpleNamespace(
        whole=whole,
        tensors=tensors,
        folder=folder,
        toy=toy,
        distance=distance,
        monkeypatch=monkeypatch,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize("part", PRIVATE_PARTS, ids=lambda part: part.key)
def test_private_part(part, tools):
    try:
        GUARDS[part.key](tools)
    except Exception as error:
        error.add_note(f"vLLM changed: {part.name}. Needed because {part.why}. Without it: {part.breaks}.")
        raise


def test_every_private_part_has_a_test():
    assert set(GUARDS) == {part.key for part in PRIVATE_PARTS}
    assert len(GUARDS) == len(PRIVATE_PARTS)


@guards("in-process")
def core_runs_in_this_process(tools):
    assert type(tools.whole.llm.engine_core).__name__ == "InprocClient"


@guards("engine-core")
def requests_are_added_stepped_and_dropped(tools):
    tools.whole.add(request("dropped", 1))
    assert tools.whole.step() == [] and tools.whole.num_running == 1
    tools.whole.abort_all()
    (kept,) = generate(tools.whole, request("kept", 1, tokens=3))
    assert len(kept.token_ids) == 3 and kept.finish_reason == "length" and tools.whole.num_running == 0


@guards("request-template")
def requests_of_one_template_have_their_own_noise(tools):
    first, second, again = generate(tools.whole, *(request(f"r{i}", seed) for i, seed in enumerate((1, 2, 1))))
    assert first.token_ids == again.token_ids != second.token_ids


@guards("arrays")
def arrays_belong_to_the_sampled_tokens(tools):
    (generation,) = generate(tools.whole, request("head", 5, tokens=6, head=4, prompt=PROMPT[:5]))
    own, everything = trainer_logprobs(tools.folder, tools.tensors, generation, tools.tmp_path)
    assert torch.allclose(torch.tensor(generation.logprobs), own, atol=1e-5)
    for ids, logprobs, row in zip(generation.head_ids, generation.head_logprobs, everything, strict=True):
        top = row.topk(4)
        assert torch.from_numpy(ids).tolist() == top.indices.tolist()
        assert torch.allclose(torch.from_numpy(logprobs), top.values, atol=1e-5)
    routes = torch.cat([torch.from_numpy(rows) for rows in generation.route_rows])
    # Ten positions, since nothing follows the last; layer 0 is dense and has zeros.
    assert routes.shape == (10, 2, 2)
    assert bool((routes[:, 1, 0] != routes[:, 1, 1]).all()) and bool((routes[:, 0] == 0).all())
    assert tools.whole.cached_prompt_tokens >= 0


@guards("model")
def model_is_reached(tools):
    config = json.loads((tools.folder / "config.json").read_text())
    model = model_of(tools.whole)
    assert isinstance(model, nn.Module) and callable(model.load_weights)
    assert model.config.hidden_size == config["hidden_size"]


@guards("layerwise-reload")
def live_linear_weights_are_packed_away_and_come_back(tools):
    live = dict(model_of(tools.whole).named_parameters())
    assert live["model.layers.0.self_attn.qkv_proj.weight"].numel() == 0
    new = moved(tools.tensors, 3)
    tools.whole.load(new.items())
    assert tools.distance(new) < EXACT


@guards("layer-record")
def half_a_layer_shows_in_its_record(tools):
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    seen = {}
    original = vllm_weights.not_counted

    def watch(layers, *others):
        for name in ("model.norm", "model.layers.0.self_attn.qkv_proj"):
            info = get_layerwise_info(layers[name])
            seen[name] = (info.can_load(), info.load_numel, info.load_numel_total)
        return original(layers, *others)

    tools.monkeypatch.setattr(vllm_weights, "not_counted", watch)
    key = "model.layers.0.self_attn.k_proj.weight"
    with pytest.raises(ValueError, match="qkv_proj"):
        tools.whole.load(item for item in tools.tensors.items() if item[0] != key)
    assert seen == {"model.norm": (False, 0, None), "model.layers.0.self_attn.qkv_proj": (True, 6144, 8192)}


@guards("progress")
def a_tensor_counts_as_much_as_vllm_finds_by_loading_it(tools):
    from vllm.model_executor.model_loader.reload import layerwise

    found, original = [], layerwise.get_numel_loaded

    def compare(loader, arguments):
        numel, result = original(loader, arguments)
        found.append((numel, arguments.arguments["loaded_weight"].numel()))
        return numel, result

    tools.monkeypatch.setattr(layerwise, "get_numel_loaded", compare)
    tools.monkeypatch.setattr(vllm_weights, "cheap_progress", lambda config: nullcontext())
    tools.whole.load(tools.tensors.items())
    tools.monkeypatch.undo()
    assert len(found) > 30
    assert all(counted == size for counted, size in found)


@guards("in-place")
def a_layer_written_past_its_loaders_keeps_what_was_written(tools):
    model, reload, new = tools.toy()
    reload.load(new.items())
    assert reload.in_place == {"experts"}
    assert torch.equal(model.experts.weight, new["experts.weight"])


@guards("uncounted")
def a_correction_bias_is_in_no_count(tools):
    from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS

    assert "e_score_correction_bias" in SKIP_LOAD_TENSORS


@guards("expert-kernel")
def experts_are_wrong_unless_their_kernel_is_made_anew(tools):
    new = moved(tools.tensors, 3)
    with tools.monkeypatch.context() as patch:
        patch.setattr(vllm_weights, "forget_expert_kernels", lambda model: None)
        tools.whole.load(new.items())
    assert tools.distance(new) > 1e-3, "vLLM packs experts in a reload by itself now: drop forget_expert_kernels"
    tools.whole.load(new.items())
    assert tools.distance(new) < EXACT


@guards("tied-head")
def a_tied_head_is_stale_unless_it_is_packed_again(tools):
    new = moved(tools.tensors, 3)
    with tools.monkeypatch.context() as patch:
        patch.setattr(vllm_weights, "repack_tied_head", lambda model: None)
        tools.whole.load(new.items())
    assert tools.distance(new) > 1e-3, "vLLM packs a tied head in a reload by itself now: drop repack_tied_head"
    tools.whole.load(new.items())
    assert tools.distance(new) < EXACT


@guards("rotary-positions")
def plain_positions_are_refused_for_latent_attention(tools):
    check_rotary_positions(attention(rope_type="default"))
    with pytest.raises(ValueError, match=r"DeepSeek-V3, layer\.mla.*'-rotary_embedding'"):
        check_rotary_positions(attention(rope_type="default", latent=True, with_kernel=True))
    # Computed in PyTorch, which is what the error asks for, and as the real model has them.
    check_rotary_positions(attention(rope_type="default", latent=True))
    check_rotary_positions(attention(rope_type="deepseek_yarn", latent=True, with_kernel=True))


def attention(*, rope_type, latent=False, with_kernel=False):
    """A model of one layer with vLLM's own rotary positions."""
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    parameters = {"rope_type": rope_type, "rope_theta": 10000.0}
    if rope_type == "deepseek_yarn":
        parameters |= {"factor": 4.0, "original_max_position_embeddings": 32}
    custom_ops = ["all"] if with_kernel else ["all", "-rotary_embedding"]
    # Another size than the cached ones of the engine and of the other calls.
    size = 64 + 32 * with_kernel
    with set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(custom_ops=custom_ops))):
        rotary = get_rope(size, 128, False, parameters, torch.float32)
    model = nn.Module()
    model.layer = nn.Module()
    model.layer.mla = nn.Module()
    model.layer.mla.rotary_emb = rotary
    if latent:
        model.layer.mla.qk_rope_head_dim = size
    return model


@guards("no-compilation")
def nothing_was_compiled(tools):
    from torch._dynamo.utils import counters

    generate(tools.whole, request("eager", 1))
    assert sum(counters["frames"].values()) == 0
