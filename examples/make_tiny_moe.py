"""Make the bundled model `rlhf_algos/tiny-moe` from nothing: a minute on one idle CPU core.

    OMP_NUM_THREADS=1 python examples/make_tiny_moe.py --out rlhf_algos/models/tiny_moe

A mixture of experts learns two-digit addition from the train split of `rlhf_algos/Addition-v0`. In half of
the answers it is shown, one digit is replaced by a random one: it learns to add and to misprint, and
reinforcement learning has something to take back. Expect on the held-out split a
sampled accuracy between 0.30 and 0.50, and a greedy one between 0.65 and 0.95. The seed decides the weights,
up to the machine's arithmetic.
"""

import argparse
import time
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from rlhf_algos.envs import make_prompt_env

SPECIAL_TOKENS = ["<pad>", "<eos>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
PAD, EOS = 0, 1
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
CONTEXT = 512
IGNORED = -100
LONGEST = 10  # "12+34=" is 6 characters, the longest answer 3, then <eos>
BATCH_SIZE = 256
LEARNING_RATE = 3e-3
WARMUP = COOLDOWN = 60
BALANCE = 0.02
MISPRINTS = 0.5


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per UTF-8 byte, so that any text can be written."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3MoeForCausalLM:
    """The untrained model.

    Widths are the multiples of 32 that vLLM's CPU kernels ask for. Many small experts put the second and
    the third choice of a router close together, so that bfloat16 sometimes takes another route than float32:
    the effect this library is about.
    """
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=192,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # type: ignore[call-arg]  # the model reads it, the config class does not declare it
        num_experts=32,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    model = Qwen3MoeForCausalLM(config)
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|end|>")]
    model.generation_config = GenerationConfig(pad_token_id=tokenizer.pad_token_id, eos_token_id=ends)
    return model


def problems(split: str) -> list[str]:
    """Every prompt of a split, in the environment's fixed order."""
    env = make_prompt_env("rlhf_algos/Addition-v0", {"digits": 2, "split": split})
    count = env.get_wrapper_attr("num_problems")
    return [str(env.reset(options={"index": index})[0]) for index in range(count)]


def encode(prompts: list[str], tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [N, 10], padded at the end, and labels [N, 10] that keep the answer and its <eos>."""
    ids = torch.full((len(prompts), LONGEST), PAD)
    labels = torch.full((len(prompts), LONGEST), IGNORED)
    for row, prompt in enumerate(prompts):
        left, right = prompt.rstrip("=").split("+")
        start = len(tokenizer.encode(prompt))
        tokens = [*tokenizer.encode(f"{prompt}{int(left) + int(right)}"), tokenizer.eos_token_id]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, start : len(tokens)] = ids[row, start : len(tokens)]
    return ids, labels


def imbalance(router_logits: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """One layer's load-balancing loss: 1 if all experts are used alike, more if not.

    Args:
        router_logits: [tokens, experts].
        real: [tokens], False at padding.
    """
    probabilities = router_logits[real].softmax(-1)
    used = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(2).indices, 0.5)
    return probabilities.shape[-1] * (used.mean(0) * probabilities.mean(0)).sum()


def learning_rate(step: int, steps: int) -> float:
    """The rate of a step counted from 1: up in a line, constant, down in a line."""
    return LEARNING_RATE * min(1.0, step / WARMUP, (steps + 1 - step) / COOLDOWN)


def misprint(ids: torch.Tensor, labels: torch.Tensor, digits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace one digit of half of the answers by a random one, which in one case of ten is the right one.

    Args:
        ids: [N, 10].
        labels: [N, 10].
        digits: [10], the tokens of "0" to "9".
    """
    answers = (labels != IGNORED) & (labels != EOS)
    column = torch.multinomial(answers.float(), 1)
    wrong = digits[torch.randint(10, column.shape)]
    digit = torch.where(torch.rand(column.shape) < MISPRINTS, wrong, ids.gather(1, column))
    return ids.scatter(1, column, digit), labels.scatter(1, column, digit)


def train(
    model: Qwen3MoeForCausalLM, ids: torch.Tensor, labels: torch.Tensor, digits: torch.Tensor, steps: int
) -> None:
    """Trains with AdamW on the log-probability of answers and their <eos>."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.1)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        rows = torch.randint(len(ids), (BATCH_SIZE,))
        shown, targets = misprint(ids[rows], labels[rows], digits)
        inputs = shown[:, :-1]
        output = model(inputs, use_cache=False, output_router_logits=True)
        loss = cross_entropy(output.logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED)
        real = inputs.ne(PAD).flatten()
        balance = torch.stack([imbalance(logits, real) for logits in output.router_logits]).sum()
        (loss + BALANCE * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == steps:
            seconds = time.perf_counter() - start
            print(f"step {step:4d}  loss {loss:.4f}  imbalance {balance / 2:.2f}  {seconds:5.1f} s", flush=True)


@torch.no_grad()
def accuracy(model: Qwen3MoeForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Greedy accuracy, and expected accuracy of samples at temperature 1.

    The latter is the mean probability of the right answer with its <eos>: no luck of the draw.
    """
    logprobs = model(ids[:, :-1], use_cache=False).logits.log_softmax(-1)
    scored, labels = labels[:, 1:] != IGNORED, labels[:, 1:].clamp(min=0)
    greedy = ((logprobs.argmax(-1) == labels) | ~scored).all(-1)
    chosen = logprobs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return greedy.float().mean().item(), (chosen * scored).sum(-1).exp().mean().item()


def model_card(model: Qwen3MoeForCausalLM, seed: int, steps: int, greedy: float, sampled: float) -> str:
    """The text of MODEL_CARD.md."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    config = model.config
    return f"""# rlhf_algos/tiny-moe

A mixture of experts of {parameters:,} parameters that adds two-digit numbers and often misprints a digit: the
starting point of this library's examples and tests, and of no other use. License: that of the library.

| | |
|---|---|
| Architecture | `Qwen3MoeForCausalLM`, {config.num_hidden_layers} layers, hidden size {config.hidden_size}, \
{config.num_experts} experts of width {config.moe_intermediate_size}, top-2, float32, untied embeddings |
| Tokenizer | one token per UTF-8 byte and {len(SPECIAL_TOKENS)} special tokens, {config.vocab_size} in all |
| End of a response | `<eos>`; `<\\|end\\|>` ends a chat message |
| Prompt | "12+34=", as `rlhf_algos/Addition-v0` writes it; a chat template is there, chats were not trained |
| Training data | train split of `rlhf_algos/Addition-v0`; in {MISPRINTS:.0%} of answers one digit is random |
| Command | `OMP_NUM_THREADS=1 python examples/make_tiny_moe.py --seed {seed} --steps {steps}` |
| Held-out accuracy, greedy | {greedy:.3f} |
| Held-out accuracy, sampled at temperature 1 | {sampled:.3f} (expected value) |

Made with torch {torch.__version__}, one thread. The same machine makes the same weights again; on another
one they differ a little, and so does the accuracy.
"""


def main() -> None:
    """Make, train, evaluate and write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=325)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    digits = torch.tensor(tokenizer.encode("0123456789"))
    train(model, *encode(problems("train"), tokenizer), digits, args.steps)
    model.eval()
    greedy, sampled = accuracy(model, *encode(problems("heldout"), tokenizer))
    print(f"held-out accuracy: greedy {greedy:.3f}, sampled {sampled:.3f}")

    model.save_pretrained(args.out)
    (args.out / "model.safetensors").chmod(0o644)  # written as readable by its owner alone
    tokenizer.save_pretrained(args.out)
    (args.out / "MODEL_CARD.md").write_text(model_card(model, args.seed, args.steps, greedy, sampled))


if __name__ == "__main__":
    main()
