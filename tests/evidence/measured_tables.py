"""Small measured tables for the tests."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

ROW = {
    "id": "own-run",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "h100",
    "num_gpus": "8",
    "on_off_policy": "sync",
    "prompts_per_step": "8",
    "generations_per_prompt": "8",
    "max_seq_len": "2048",
    "avg_seq_len": "400",
    "gen_tp": "1",
    "gen_pp": "1",
    "gen_ep": "1",
    "train_tp": "1",
    "train_cp": "1",
    "train_ep": "1",
    "train_pp": "1",
    "total_step_time_s": "20",
}
"""The columns that a user's own table needs, and one run that takes a moment to simulate."""


def row(**changes: str) -> dict[str, str]:
    """ROW with other cells."""
    return {**ROW, **changes}


def write(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    """A CSV file of ``rows`` with the columns of all of them."""
    columns = list(dict.fromkeys(name for cells in rows for name in cells))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path
