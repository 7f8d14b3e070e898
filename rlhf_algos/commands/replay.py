"""`rlhf-algos replay`: corrections side by side on saved batches, and the parts of their mismatch."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from rlhf_algos.metrics import LEARNER, is_listed, metric_of

_MISMATCH = ("mismatch_kl", "train_rollout_logprob_abs_diff")
_COLUMNS = (
    *("loss", "grad_norm", "cosine", "norm_ratio", "tis_clipfrac", "kept_signal", "ess"),
    *_MISMATCH,
    "route_mismatch",
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "replay",
        help="apply every correction to the same saved batch and compare the gradients",
        description="On fixed batches, compute the gradient under every setting and compare it with the reference's. "
        "Neither Ray nor vLLM is started. Write batches with debugging(save_batches=FOLDER).",
    )
    parser.add_argument("batches", type=Path, nargs="+", metavar="BATCH", help="saved batches, or folders of them")
    parser.add_argument(
        "--correctors",
        nargs="+",
        default=["none", "is", "tis", "icepop"],
        metavar="NAME",
        help='names, dotted paths or JSON such as \'{"type": "tis", "high": 3.0}\' (none is tis icepop)',
    )
    parser.add_argument(
        "--centering", nargs="+", choices=("off", "on"), help="score centering (both, if the batch has a head)"
    )
    parser.add_argument(
        "--router-replay", nargs="+", default=["none"], metavar="NAME", help="none, r3, r2 or dotted paths (none)"
    )
    parser.add_argument("--reference", default="none", metavar="NAME", help="corrector to compare with")
    parser.add_argument("--model", help="the trainer's weights of that iteration; by default the batch's model")
    parser.add_argument("--sampler-model", help="also split the mismatch: the weights that the engine sampled with")
    parser.add_argument(
        "--fraction", type=float, default=1.0, help="share of the responses that --sampler-model looks at (1.0)"
    )
    parser.add_argument("--json", type=Path, help="write the table there too")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table; exit status 2 if the batches can't be used."""
    from rich.console import Console

    errors = Console(stderr=True)
    try:
        # Before Ray and DeepSpeed are imported, which takes its time.
        from rlhf_algos.analysis.setting import Setting, all_settings

        for name in arguments.correctors:
            Setting(_spec(name))
        reference = Setting(_spec(arguments.reference))

        from rlhf_algos.analysis.compare import compare_settings
        from rlhf_algos.batch import RolloutBatch
        from rlhf_algos.driver.saved_batches import batch_files

        batch = RolloutBatch.concatenate(RolloutBatch.load(file) for file in batch_files(arguments.batches))
        if batch.routes is None and set(arguments.router_replay) - {"none"}:
            raise ValueError(
                "the batch has no routes, so --router-replay can only be none. Runs keep them with "
                "config.sampling(record_routes=True), or router_replay='r3'."
            )
        has_head = batch.head_ids is not None or batch.support_ids is not None
        centering = arguments.centering or (["off", "on"] if has_head else ["off"])
        if not has_head:
            errors.print("No score centering: the batch has no head (config.sampling(record_head=128) keeps one).")
        settings = all_settings(
            [_spec(name) for name in arguments.correctors],
            [choice == "on" for choice in centering],
            arguments.router_replay,
        )
        table = compare_settings(batch, settings, reference=reference, model=arguments.model)
        result: dict[str, Any] = {
            "batches": [str(path) for path in arguments.batches],
            "content_hash": batch.content_hash,
            "reference": arguments.reference,
            "settings": table,
        }
        if arguments.sampler_model:
            result["mismatch"] = _parts(batch, arguments)
    except (ValueError, TypeError, FileNotFoundError) as error:
        errors.print(f"rlhf-algos replay: {error}", soft_wrap=True, markup=False)
        return 2
    _print_table(f"{batch.num_samples} responses, {batch.num_trained_tokens} trained tokens", table, _COLUMNS)
    if "mismatch" in result:
        parts = [{"setting": name} | values for name, values in result["mismatch"].items()]
        _print_table("log p - log q by part", parts, ("mean", *reversed(_MISMATCH)))
    if arguments.json:
        arguments.json.write_text(json.dumps(_without_nan(result), indent=1) + "\n")
    return 0


def _parts(batch: Any, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    from rlhf_algos.analysis.decomposition import decompose_mismatch

    return decompose_mismatch(
        batch,
        model=arguments.model or batch.require_settings().require_model(),
        sampler_model=arguments.sampler_model,
        fraction=arguments.fraction,
    )


def _spec(text: str) -> Any:
    """A corrector's name or path, or a JSON object such as {"type": "tis", "high": 3.0}."""
    return json.loads(text) if text.lstrip().startswith("{") else text


def _print_table(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = [name for name in columns if any(name in row for row in rows)]
    table = Table(title=title)
    table.add_column("setting")
    for name in shown:
        key = f"{LEARNER}/{name}"
        # A comparison has numbers of its own, such as the cosine.
        table.add_column(metric_of(key).column if is_listed(key) else name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(row["setting"], *(f"{row[key]:.4g}" if key in row else "" for key in shown))
    console = Console()
    # A file or a pipe has no width; rich would fold the columns at 80 characters.
    (console if console.is_terminal else Console(width=180)).print(table)


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: None instead."""
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
