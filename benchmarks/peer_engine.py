"""Measured engine iterations beside AIConfigurator 0.12 and rlsim, in one run.

``python benchmarks/peer_engine.py decode_iterations.csv [--peer-python PATH]`` prints number of rows, bias, median
error and 90th percentile of both on the rows that both answer, and how many each refuses. AIConfigurator runs in a
process of its own (``peer_worker.py``), by default under this interpreter: ``pip install 'rlsim[peer]'``. Its decode
step is held against decode steps measured alone, its serving estimate against serving; rlsim is asked by
``rlsim validate TABLE --kind iterations --json``. ``--rlsim-json`` reads such a file instead of simulating anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

Cells = Mapping[str, str]
Question = dict[str, Any]

SYSTEMS = {
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
}
"""AIConfigurator's name of each GPU."""
CHECKPOINTS: dict[tuple[str, str], str] = {
    ("DeepSeek-R1", "fp8"): "deepseek-ai/DeepSeek-R1",
    ("DeepSeek-R1", "fp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    ("DeepSeek-V3.1-NVFP4", "fp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    ("Llama-3.1-70B", "fp8"): "nvidia/Llama-3.1-70B-Instruct-FP8",
    ("Llama-3.1-70B", "fp4"): "meta-llama/Meta-Llama-3.1-70B",
    ("Llama-3.1-8B-Instruct", "fp8"): "meta-llama/Meta-Llama-3.1-8B",
    ("Llama-3.1-8B-Instruct", "bf16"): "meta-llama/Meta-Llama-3.1-8B",
    ("Qwen3-32B", "fp8"): "Qwen/Qwen3-32B",
    ("Qwen3-32B", "bf16"): "Qwen/Qwen3-32B",
    ("Qwen3-32B-NVFP4", "fp4"): "Qwen/Qwen3-32B",
    ("Qwen3-235B-A22B-FP8", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("MiniMax-M2.5", "fp8"): "MiniMaxAI/MiniMax-M2.5",
    ("MiniMax-M2.5", "fp4"): "nvidia/MiniMax-M2.5-NVFP4",
    ("Kimi-K2.5", "int4"): "moonshotai/Kimi-K2.5",
    ("Kimi-K2.5", "fp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("gpt-oss-120b", "fp4"): "openai/gpt-oss-120b",
    ("Qwen3.5-397B-A17B", "bf16"): "Qwen/Qwen3.5-397B-A17B",
    ("Qwen3.5-397B-A17B", "fp8"): "Qwen/Qwen3.5-397B-A17B",
    ("Qwen3.5-397B-A17B", "fp4"): "nvidia/Qwen3.5-397B-A17B-NVFP4",
    ("GLM-5", "fp8"): "zai-org/GLM-5-FP8",
    ("GLM-5", "fp4"): "nvidia/GLM-5-NVFP4",
}
"""Checkpoint whose layers and numeric formats a row of (model, precision) has, of those that it ships."""
DENSE = ("Llama", "Qwen3-32B")
BF16_CHECKPOINTS = ("meta-llama/", "Qwen/Qwen3-32B")
FORMATS = {"fp8": "fp8", "fp4": "nvfp4"}
ASSUMED_ACCEPTANCE = {1: 1.87, 2: 2.15, 3: 2.6}
"""Acceptance length by drafted tokens where a row states none, as rlsim validate takes it."""
INFORMATION_FLAGS = ("", "parallelism_corrected")
SAME = 0.01
"""Largest relative difference between two readings of the same measured value."""


class RefusedError(Exception):
    """Why AIConfigurator is not asked for a row."""


@dataclass(frozen=True)
class Pair:
    """A row that both predict: errors (predicted / measured - 1), and what it is grouped by."""

    ours: float
    peer: float
    engine: str
    model: str
    speculative: bool
    one_node: bool
    batch: float


def number(cells: Cells, column: str, default: float = 0.0) -> float:
    """Value of a cell; ``default`` where it is empty."""
    return float(cells.get(column) or default)


def running_batch(cells: Cells) -> float:
    """Requests in the decode phase of one engine: by Little's law, else all that are open."""
    open_requests = number(cells, "concurrency") / max(1.0, number(cells, "decode_workers", 1.0))
    open_requests = number(cells, "decode_batch_per_engine", open_requests)
    return number(cells, "est_decoding_reqs_per_engine") or open_requests


def model_name(cells: Cells) -> str:
    """Name of the model without its owner."""
    return cells["model"].split("/")[-1]


def within_one_node(cells: Cells) -> bool:
    """Whether an engine fits into one HGX node of eight GPUs, or one NVL72 tray of four."""
    return number(cells, "decode_gpus_per_engine", 1) <= (4 if cells["gpu"].startswith("GB") else 8)


def formats(cells: Cells, checkpoint: str) -> dict[str, str | None]:
    """Numeric formats in place of the checkpoint's own, None to keep them.

    BF16 checkpoints that were served quantised; and FP8 GEMMs where its own sample of runs names them and its tables
    of block-scaled ones are of other kernels.
    """
    precision, engine, gpu, found = cells["precision"], cells["engine"], cells["gpu"], model_name(cells)
    asked: dict[str, str | None] = {"gemm": None, "moe": None, "kv": None}
    if checkpoint.startswith(BF16_CHECKPOINTS) and precision in FORMATS:
        asked |= {"gemm": FORMATS[precision], "kv": "fp8"}
        if found.startswith("Llama-3.1-8B"):
            asked |= {"gemm": "fp8_block", "kv": None}
    if found == "Qwen3.5-397B-A17B" and precision == "fp8":
        asked |= {"gemm": "fp8", "moe": "fp8_block"}
    blackwell = gpu.startswith(("B", "G"))
    if found == "MiniMax-M2.5" and precision == "fp8":
        asked |= {"gemm": "fp8", "moe": "fp8"}
    if found == "DeepSeek-R1" and precision == "fp8" and engine == "trtllm" and blackwell:
        asked |= {"gemm": "fp8", "moe": "fp8"}
    if found == "gpt-oss-120b" and engine == "trtllm" and blackwell:
        asked["moe"] = "w4a8_mxfp4_mxfp8_trtllm"
    return asked


def question_of(cells: Cells) -> Question:
    """What to ask AIConfigurator for a row; raises RefusedError."""
    precision = cells["precision"] or "bf16"
    checkpoint = CHECKPOINTS.get((model_name(cells), precision))
    if checkpoint is None or cells["gpu"] not in SYSTEMS:
        raise RefusedError(f"no checkpoint or system for {model_name(cells)} {precision} on {cells['gpu']}")
    if number(cells, "pp", 1) != 1 or not running_batch(cells):
        raise RefusedError("pipeline parallel, or no batch")
    drafted = 0
    if cells["spec_method"] == "mtp":
        drafted = int(number(cells, "spec_k"))
        if not drafted:
            raise RefusedError("spec_k is not given")
    accepted = number(cells, "acceptance_length", ASSUMED_ACCEPTANCE.get(drafted, 1.0))
    gpus = int(number(cells, "decode_gpus_per_engine", 1))
    copies = max(1, int(number(cells, "attn_dp", 1))) if cells["dp_attention"] == "1" else 1
    if cells["dp_attention"] == "1" and copies == 1:
        copies = gpus
    experts = int(number(cells, "ep", 1)) or 1
    if gpus % copies or gpus % experts:
        raise RefusedError("attn_dp or ep does not divide the GPUs of an engine")
    shortest = number(cells, "random_range_ratio", 1.0)
    dense = model_name(cells).startswith(DENSE)
    return {
        "engine": {
            "system": SYSTEMS[cells["gpu"]],
            "backend": cells["engine"],
            "checkpoint": checkpoint,
            "tp": gpus // copies,
            "dp": copies,
            "moe_tp": None if dense else gpus // experts,
            "moe_ep": None if dense else experts,
            "drafted": drafted,
            **formats(cells, checkpoint),
        },
        "batch": max(1, round(running_batch(cells) / copies)),
        "prompt": max(1, round(number(cells, "isl") * (1 + shortest) / 2)),
        "response": max(2, round(number(cells, "osl") * (1 + shortest) / 2)),
        "serving": cells["serving_mode"] != "disagg",
        "acceptance_length": min(max(accepted, 1.0), drafted + 1.0),
    }


def fail(message: str) -> NoReturn:
    """End with exit code 2 and one line."""
    print(f"peer_engine: {message}", file=sys.stderr)
    raise SystemExit(2)


def ask_peer(python: str, questions: Sequence[Question]) -> list[dict[str, Any]]:
    """Its answers in the order of the questions; ends the program where its interpreter lacks the package."""
    # Questions of one engine follow each other, so that its tables are read once.
    order = sorted(range(len(questions)), key=lambda i: json.dumps(questions[i]["engine"], sort_keys=True))
    lines = "\n".join(json.dumps(questions[i]) for i in order)
    worker = [python, str(Path(__file__).with_name("peer_worker.py"))]
    try:
        done = subprocess.run(worker, input=lines, capture_output=True, text=True, check=False)
    except OSError as error:
        fail(f"--peer-python {python}: {error.strerror}")
    answers = done.stdout.splitlines()
    if done.returncode or len(answers) != len(questions):
        said = (done.stderr.strip().splitlines() or ["it ended early"])[-1][:200]
        fail(f"{python}: {said}; pip install 'rlsim[peer]', or name another interpreter by --peer-python")
    ordered: list[dict[str, Any]] = [{} for _ in questions]
    for place, answer in zip(order, answers, strict=True):
        ordered[place] = json.loads(answer)
    return ordered


def our_rows(written: Path | None, table: Path) -> list[dict[str, Any]]:
    """Rows that ``rlsim validate`` wrote to a file, else those it says of the table in a process of its own."""
    if written is not None:
        try:
            return list(json.loads(written.read_text(encoding="utf-8"))["rows"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            fail(f"{written}: is no JSON of rlsim validate ({type(error).__name__})")
    call = [sys.executable, "-c", "from rlsim.cli import main; main()"]
    call += ["validate", str(table), "--kind", "iterations", "--json"]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(2)
    return list(json.loads(done.stdout)["rows"])


def peer_value(cells: Cells, question: Question, answer: Mapping[str, Any], measured_ms: float) -> float | None:
    """Milliseconds that AIConfigurator predicts of the quantity that was measured; None where it refuses."""
    step = answer.get("decode_step_ms")
    measured_step = number(cells, "decode_step_ms_est")
    if measured_step and abs(measured_ms / measured_step - 1) < SAME:
        return step
    if question["serving"]:
        return answer.get("tpot_ms")
    return None if step is None else step / question["acceptance_length"]


def pair_of(cells: Cells, ours: float, peer: float) -> Pair:
    """A row with both errors."""
    batch, speculative = running_batch(cells), cells["spec_method"] != "none"
    return Pair(ours, peer, cells["engine"], model_name(cells), speculative, within_one_node(cells), batch)


def groups(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Rows by what they are scored together with, in order of printing."""
    plain = [row for row in pairs if not row.speculative]
    alone = [row for row in plain if row.one_node]
    found = {
        "all": list(pairs),
        "speculative": [row for row in pairs if row.speculative],
        "plain": plain,
        "plain, one node or tray": alone,
        "  running batch up to 8": [row for row in alone if row.batch <= 8],
        "  running batch from 64 on": [row for row in alone if row.batch >= 64],
        "plain, several nodes or trays": [row for row in plain if not row.one_node],
    }
    for engine in sorted({row.engine for row in plain}):
        found[f"plain, {engine}"] = [row for row in plain if row.engine == engine]
    for model in sorted({row.model for row in plain}):
        found[f"plain, {model}"] = [row for row in plain if row.model == model]
    return found


def score(errors: Sequence[float]) -> tuple[float, ...]:
    """Bias (median of signed errors), median and 90th percentile of their absolute values, as shares.

    >>> score([-0.1, 0.2, 0.3])
    (0.2, 0.2, 0.28)
    """
    absolute = np.abs(errors)
    values = np.median(errors), np.median(absolute), np.quantile(absolute, 0.9)
    return tuple(round(float(value), 6) for value in values)


def table_text(pairs: Sequence[Pair]) -> str:
    """The comparison as lines of text."""
    lines = [f"{'rows that both answer':34s} {'n':>5s}   {'rlsim: bias, median, p90':>26s}   {'AIConfigurator':>26s}"]
    for name, rows in groups(pairs).items():
        if rows:
            sides = [score([row.ours for row in rows]), score([row.peer for row in rows])]
            shown = "   ".join(f"{100 * b:+7.1f} {100 * m:7.1f} {100 * p:7.1f} %" for b, m, p in sides)
            lines.append(f"{name:34s} {len(rows):5d}   {shown}")
    return "\n".join(lines)


def compare(records: Mapping[str, Cells], ours: Sequence[Mapping[str, Any]], python: str) -> str:
    """Both predictions of every record, as text; ``ours``: rows of what rlsim validate wrote."""
    predicted = {str(row["id"]): row for row in ours if not row.get("skipped") and row.get("predicted") is not None}
    asked: list[tuple[str, Question]] = []
    for name, cells in records.items():
        with suppress(RefusedError):
            asked.append((name, question_of(cells)))
    answered, pairs = 0, []
    for (name, question), answer in zip(asked, ask_peer(python, [one for _, one in asked]), strict=True):
        cells, row = records[name], predicted.get(name)
        scale = 1e3 if row and row.get("unit") == "s" else 1.0
        measured_ms = scale * row["measured"] if row else number(cells, "decode_step_ms_est", number(cells, "tpot_ms"))
        peer_ms = peer_value(cells, question, answer, measured_ms)
        answered += peer_ms is not None
        if peer_ms is not None and row:
            pairs.append(pair_of(cells, scale * row["predicted"] / measured_ms - 1, peer_ms / measured_ms - 1))
    ours_refused = sum(name not in predicted for name in records)
    refused = f"rlsim {ours_refused}, AIConfigurator {len(records) - answered}"
    return f"{table_text(pairs)}\n\n{len(records)} rows; refused: {refused}"


def read_records(table: Path) -> dict[str, Cells]:
    """Rows by id that nothing objects to, without speculation or with MTP."""
    try:
        with table.open(newline="", encoding="utf-8") as file:
            cells = list(csv.DictReader(file))
        return {
            row["id"]: row
            for row in cells
            if row.get("flag", "") in INFORMATION_FLAGS and row["spec_method"] in ("none", "mtp")
        }
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{table}: cannot be read ({type(error).__name__})")
    except KeyError as column:
        fail(f"{table}: has no column {column}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="decode_iterations.csv or a table of its columns")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has aiconfigurator")
    parser.add_argument("--rlsim-json", type=Path, help="what rlsim validate wrote for this very table")
    options = parser.parse_args(arguments)
    records = read_records(options.table)
    if not records:
        fail(f"{options.table}: has no row without a flag that says whether it speculated")
    ask_peer(options.peer_python, [])
    print(compare(records, our_rows(options.rlsim_json, options.table), options.peer_python))


if __name__ == "__main__":
    main()
