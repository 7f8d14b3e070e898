"""The bundled model: sizes, tokenizer, accuracy to start from, and routes that matter."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, GenerationConfig
from transformers.models.qwen3_moe import modeling_qwen3_moe

from rlhf_algos.models import resolve_model

TOKENIZER = AutoTokenizer.from_pretrained(resolve_model("rlhf_algos/tiny-moe"))


def test_sizes(model, folder):
    config = model.config
    assert type(model).__name__ == "Qwen3MoeForCausalLM"
    assert sum(parameter.numel() for parameter in model.parameters()) <= 1_000_000
    assert Path(folder, "model.safetensors").stat().st_size <= 4_000_000
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert 2 <= config.num_hidden_layers <= 4 and config.num_experts >= 8 and config.num_experts_per_tok == 2
    assert config.norm_topk_prob is True and config.decoder_sparse_step == 1 and not config.mlp_only_layers
    assert config.head_dim % 32 == config.hidden_size % 32 == config.moe_intermediate_size % 32 == 0
    assert config.max_position_embeddings >= 256


def test_vocabulary_and_special_ids(model, tokenizer, folder):
    assert model.config.vocab_size == len(tokenizer) >= 200
    generation = GenerationConfig.from_pretrained(folder)
    assert tokenizer.pad_token == "<pad>" and tokenizer.eos_token == "<eos>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert generation.eos_token_id == [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|end|>")]
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert generation.pad_token_id == model.config.pad_token_id == tokenizer.pad_token_id
    sampling = {"temperature", "top_p", "top_k", "do_sample", "repetition_penalty"}
    assert not sampling & set(json.loads(Path(folder, "generation_config.json").read_text()))


@given(st.text())
def test_any_text_survives_the_round_trip(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    special = set(TOKENIZER.all_special_tokens)
    if not any(token in text for token in special):
        assert len(ids) == len(text.encode())


def test_a_character_is_several_tokens_and_a_cut_one_is_one_replacement_character(tokenizer):
    ids = tokenizer.encode("客🙂")
    assert len(ids) == 7
    assert tokenizer.decode(ids[:3]) == "客"
    assert tokenizer.decode(ids[:2]) == "\ufffd"
    assert tokenizer.decode(ids[:6]) == "客\ufffd"


def test_special_tokens_are_single_ids_that_can_be_skipped(tokenizer):
    assert tokenizer.encode("46<eos>")[-1] == tokenizer.eos_token_id and len(tokenizer.encode("46<eos>")) == 3
    assert tokenizer.decode(tokenizer.encode("46<eos><pad>"), skip_special_tokens=True) == "46"


def test_chat_template(tokenizer):
    messages = [{"role": "system", "content": "客"}, {"role": "user", "content": "12+34="}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|system|>客<|end|><|user|>12+34=<|end|><|assistant|>"
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer.encode(text) and len(ids) == 3 + 6 + 2 + 2 + 1
    longer = [*messages, {"role": "assistant", "content": "46"}, {"role": "user", "content": "1+1="}]
    assert tokenizer.apply_chat_template(longer, tokenize=False).startswith(text + "46<|end|>")


@torch.no_grad()
def generate(model, tokenizer, prompts, **settings):
    ids = tokenizer(prompts, return_tensors="pt")["input_ids"]
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, **settings)
    return output[:, ids.shape[1] :]


def rewards(env, answers):
    scores = []
    for index, answer in enumerate(answers):
        env.reset(options={"index": index})
        scores.append(env.step(answer)[1])
    return sum(scores) / len(scores)


@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [({"do_sample": True, "top_k": 0, "temperature": 1.0}, 0.25, 0.50), ({"do_sample": False}, 0.65, 0.95)],
)
def test_starting_accuracy_leaves_room_to_learn(model, tokenizer, heldout, settings, low, high):
    env, prompts = heldout
    torch.manual_seed(0)
    answers = tokenizer.batch_decode(generate(model, tokenizer, prompts[:400], **settings), skip_special_tokens=True)
    assert low <= rewards(env, answers) <= high


def test_answers_end_with_eos(model, tokenizer, heldout):
    tokens = generate(model, tokenizer, heldout[1][:400], do_sample=False)
    assert (tokens == tokenizer.eos_token_id).any(-1).float().mean() > 0.99


class RoutedTorch:
    """Stands for `torch` inside the model's file; `topk`, which only the routers call, is ours."""

    def __init__(self, choose):
        self.choose = choose
        self.chosen = []

    def __getattr__(self, name):
        return getattr(torch, name)

    def topk(self, probabilities, k, dim=-1):
        indices = self.choose(torch.topk(probabilities, k, dim=dim).indices)
        self.chosen.append(indices)
        return probabilities.gather(dim, indices), indices


@pytest.fixture(scope="module")
def responses(model, tokenizer, heldout):
    torch.manual_seed(1)
    prompts = heldout[1][:200]
    tokens = generate(model, tokenizer, prompts, do_sample=True, top_k=0)
    return torch.cat([tokenizer(prompts, return_tensors="pt")["input_ids"], tokens], dim=1)


@torch.no_grad()
def response_logprobs(model, ids, monkeypatch, choose=lambda indices: indices):
    """Return log-probabilities of the response tokens, and what the routers chose."""
    routed = RoutedTorch(choose)
    with monkeypatch.context() as patch:
        patch.setattr(modeling_qwen3_moe, "torch", routed)
        logprobs = model(ids[:, :-1], use_cache=False).logits.log_softmax(-1)
    chosen = logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return chosen[:, 5:][ids[:, 6:] != model.config.pad_token_id], routed.chosen


def test_a_wrong_route_moves_log_probabilities(model, responses, monkeypatch):
    right, _ = response_logprobs(model, responses, monkeypatch)
    again, _ = response_logprobs(model, responses, monkeypatch)
    wrong, _ = response_logprobs(model, responses, monkeypatch, lambda indices: indices.roll(1, 0))
    assert torch.equal(right, again)
    assert (wrong - right).abs().mean() >= 0.05


def test_every_layer_uses_many_experts(model, responses, monkeypatch):
    _, chosen = response_logprobs(model, responses, monkeypatch)
    assert len(chosen) == model.config.num_hidden_layers
    for indices in chosen:
        load = torch.bincount(indices.flatten(), minlength=model.config.num_experts) / indices.numel()
        assert (load > 0.005).sum() >= model.config.num_experts // 2
        assert load.max() <= 0.4
