"""Published weight transfers between split pools beside those of the cost model.

Simulated are full broadcasts and resharded transfers of models with a card here. The GPUs of NeMo-RL's figures are not
named; its nodes have eight, and H100 is assumed. Transfers of deltas and per-tensor loops are other algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlsim.costs.prices import price_inputs
from rlsim.errors import RlsimError
from rlsim.hardware.cards import load_card
from rlsim.hardware.profile import load_profile
from rlsim.results import Interval
from rlsim.schema.scenario import Scenario
from rlsim.validation.rows import SkippedRow, card_name, profile_name
from rlsim.validation.study import PublishedFigure, published_table
from rlsim.validation.table import read_table

ASSUMED_GPU = "h100"
_COLUMNS = ("id", "framework", "model", "gpu", "train_gpus", "gen_gpus", "backend", "gen_tp", "kind", "refit_s")


def published_refits() -> tuple[tuple[PublishedFigure, ...], tuple[tuple[str, str], ...]]:
    """PublishedFigure transfers, and (id, reason) of those that are not simulated."""
    compared, skipped = [], []
    for record in read_table(published_table("refit.csv"), _COLUMNS):
        cell = record.cells
        try:
            seconds = price_inputs(_scenario(cell)).transfers.transfer().seconds
        except (SkippedRow, RlsimError) as reason:
            skipped.append((cell["id"], str(reason)))
            continue
        label = f"{cell['id']}: {cell['model']}, {cell['train_gpus']} + {cell['gen_gpus']} GPUs, {cell['method']}"
        group = f"refit, {cell['framework'].split()[0]}"
        compared.append(PublishedFigure(group, label, "s", float(cell["refit_s"]), Interval(seconds, seconds, seconds)))
    return tuple(compared), tuple(skipped)


def _scenario(cell: Mapping[str, str]) -> Scenario:
    if not cell["kind"]:
        raise SkippedRow(f"transfer by {cell['method']} is not modelled")
    if not cell["gen_tp"]:
        raise SkippedRow("tensor parallel size of the engine is unpublished")
    training, generation = int(cell["train_gpus"]), int(cell["gen_gpus"])
    return Scenario.model_validate(
        {
            "name": cell["id"],
            "model": load_card(card_name(cell["model"])),
            "hardware": load_profile(profile_name(cell["gpu"] or ASSUMED_GPU)),
            "cluster": {"num_gpus": training + generation, "generation_gpus": generation, "training_gpus": training},
            "workload": {
                "prompts_per_step": 32,
                "generations_per_prompt": 16,
                "response_tokens": {"kind": "constant", "tokens": 700},
                "max_sequence_tokens": 1536,
            },
            "engine": {"tensor_parallel": int(cell["gen_tp"]), "max_running_sequences": 128, "dispatch": "round_robin"},
            "trainer": {
                "backend": cell["backend"],
                "tensor_parallel": int(cell["train_tp"] or 1),
                "pipeline_parallel": int(cell["train_pp"] or 1),
                "expert_parallel": int(cell["train_ep"] or 1),
                "recompute": "full",
                "optimizer_bytes_per_parameter": 8.0,
            },
            "loop": {"mode": "async", "policy_lag": 1, "refit": cell["kind"]},
        }
    )
