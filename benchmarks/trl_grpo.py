"""TRL's GRPOTrainer as a worker that is measured in turn with another program.

    .venv-trl/bin/python benchmarks/trl_grpo.py rlhf_algos/models/tiny_moe

It loads the model, does a few iterations to warm up, prints one JSON line with its settings, and then reads
commands from standard input:

    run N    do N more training iterations and print one JSON line with the seconds that each took
    quit     end

One iteration is `--prompts` x `--group-size` responses of exactly `--response-tokens` tokens, sampled by
`generate` (no vLLM), and one optimizer step on all of them, in float32 on the CPU. Between commands the
worker only waits, so a driver can alternate it with a second worker on the same cores. All that the libraries
print goes to standard error.

Runs in an environment of its own (benchmarks/requirements-trl.txt, `make benchmark-trl`).
"""

import argparse
import json
import random
import sys
import tempfile
import time
from typing import Any, TextIO

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, TrainerControl, TrainerState
from trl import GRPOConfig, GRPOTrainer


class Quit(Exception):
    """The driver said `quit`, or closed the pipe."""


class Driven(TrainerCallback):
    """Lets the trainer run as many iterations as the driver asks for, and takes their times.

    An iteration lasts from the beginning of one step to the beginning of the next, so it contains everything
    that the trainer does: sampling, rewards, the optimizer step and its own bookkeeping.
    """

    def __init__(self, commands: TextIO, answers: TextIO, warmup: int, settings: dict[str, Any]) -> None:
        self.commands = commands
        self.answers = answers
        self.settings = settings
        self.responses = settings["prompts"] * settings["group_size"]
        self.warming_up = True
        self.remaining = warmup
        self.seconds: list[float] = []
        self.started: float | None = None

    def on_step_begin(self, args: GRPOConfig, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Close the iteration that ended, answer when it was the last one asked for, and wait."""
        if self.started is not None:
            self.seconds.append(time.perf_counter() - self.started)
            self.remaining -= 1
        if self.remaining == 0:
            self.answer(self.report())
            self.remaining = self.next_command()
            self.seconds = []
        self.started = time.perf_counter()

    def report(self) -> dict[str, Any]:
        """What is printed after the warm-up, and after each `run`."""
        if self.warming_up:
            self.warming_up = False
            return {"ready": True, "warmup_seconds": self.seconds, **self.settings}
        iterations = len(self.seconds)
        return {
            "iterations": iterations,
            "seconds": self.seconds,
            "samples_per_second": iterations * self.responses / sum(self.seconds),
        }

    def answer(self, content: dict[str, Any]) -> None:
        """Prints one JSON line to the driver."""
        print(json.dumps(content), file=self.answers, flush=True)

    def next_command(self) -> int:
        """Wait for a command; returns the number of iterations to do."""
        while True:
            line = self.commands.readline()
            words = line.split()
            if not line or words == ["quit"]:
                raise Quit
            if len(words) == 2 and words[0] == "run" and words[1].isdigit() and int(words[1]) > 0:
                return int(words[1])
            self.answer({"error": f"unknown command {line.strip()!r}; say `run N` with N > 0, or `quit`"})


def digit_share(length: int) -> Any:
    """A reward that differs within a group, so that the gradient isn't zero: the share of digits.

    It also refuses responses of another length, on which the comparison rests.
    """

    def reward(completions: list[str], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        lengths = {len(ids) for ids in completion_ids}
        if lengths != {length}:
            raise RuntimeError(f"responses of {sorted(lengths)} tokens, each must have exactly {length}.")
        return [sum(char.isdigit() for char in text) / length for text in completions]

    return reward


def make_trainer(arguments: argparse.Namespace, folder: str) -> GRPOTrainer:
    """The trainer on the given model, with prompts of two-digit addition."""
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    rng = random.Random(arguments.seed)
    prompts = [f"{rng.randint(10, 99)}+{rng.randint(10, 99)}=" for _ in range(100 * arguments.prompts)]
    config = GRPOConfig(
        output_dir=folder,
        seed=arguments.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        # The whole batch is one micro-batch and one optimizer step.
        per_device_train_batch_size=arguments.prompts * arguments.group_size,
        gradient_accumulation_steps=1,
        num_generations=arguments.group_size,
        num_iterations=1,
        beta=0.0,
        temperature=1.0,
        max_completion_length=arguments.response_tokens,
        generation_kwargs={"min_new_tokens": arguments.response_tokens},
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        # The driver ends the run, not the trainer.
        max_steps=10**9,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=digit_share(arguments.response_tokens),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="TRL's GRPOTrainer, driven over standard input.")
    parser.add_argument("model", help="folder of a Hugging Face causal language model with its tokenizer")
    parser.add_argument("--prompts", type=int, default=8, help="prompts per iteration")
    parser.add_argument("--group-size", type=int, default=8, help="responses per prompt")
    parser.add_argument("--response-tokens", type=int, default=32, help="length of every response")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--warmup", type=int, default=3, help="iterations before the first command")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Trains as far as the driver asks for."""
    arguments = parse_arguments()
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(arguments.threads)
    settings = {
        **vars(arguments),
        "trl": trl.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(arguments, folder)
        settings["parameters"] = sum(parameter.numel() for parameter in trainer.model.parameters())
        trainer.add_callback(Driven(sys.stdin, answers, arguments.warmup, settings))
        try:
            trainer.train()
        except Quit:
            return


if __name__ == "__main__":
    main()
