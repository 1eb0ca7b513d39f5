"""Small measured tables for the tests."""

import csv
from collections.abc import Sequence
from pathlib import Path

ROW = {
    "id": "own-run", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100", "num_gpus": "8",
    "on_off_policy": "sync", "prompts_per_step": "8", "generations_per_prompt": "8", "max_seq_len": "2048",
    "avg_seq_len": "400", "gen_tp": "1", "gen_pp": "1", "gen_ep": "1", "train_tp": "1", "train_cp": "1",
    "train_ep": "1", "train_pp": "1", "total_step_time_s": "20",
}  # fmt: skip
"""The columns that a user's own table needs, and one run that takes a moment to simulate."""

TRAINING = {
    "id": "a", "framework": "Megatron-Bridge", "training_kind": "pretrain", "model": "LLAMA3_8B", "layers_override": "",
    "gpu": "H100", "num_gpus": "8", "precision": "BF16", "gbs": "128", "mbs": "1", "seq_len": "4096", "tp": "1",
    "pp": "1", "cp": "2", "ep": "1", "fsdp": "0", "recompute": "", "optimizer": "", "packed": "0", "step_time_s": "9",
    "implied_step_time_s": "10", "flag": "",
}  # fmt: skip
TRANSFER = {
    "id": "a", "framework": "NeMo-RL", "model": "Qwen3-30B-A3B", "gpu": "H100", "method": "NCCL-Reshard",
    "train_parallelism": "EP8 PP2", "gen_parallelism": "TP8 DP2", "train_gpus": "16", "gen_gpus": "16",
    "placement": "disaggregated", "time_s": "4",
}  # fmt: skip
PHASES = {
    "id": "a", "model": "Qwen/Qwen3-30B-A3B", "gpu": "H100", "num_gpus": "16", "train_gpus": "8", "rollout_gpus": "8",
    "placement": "disaggregated async", "prompts_per_step": "8", "samples_per_prompt": "8", "max_prompt_len": "256",
    "max_response_len": "1024", "mean_response_len": "300", "precision": "bf16", "gen_parallelism": "TP4",
    "train_backend": "Megatron", "train_parallelism": "EP8", "total_step_s": "30", "train_s": "5",
    "exposed_generation_s": "9", "old_logprob_s": "1", "ref_logprob_s": "1.5", "weight_sync_s": "2",
}  # fmt: skip


def row(**changes: str) -> dict[str, str]:
    return {**ROW, **changes}


def write(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    """A CSV file of ``rows`` with the columns of all of them."""
    columns = list(dict.fromkeys(name for cells in rows for name in cells))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path
