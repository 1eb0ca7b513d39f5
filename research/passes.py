"""Fit the terms of FSDP trainers around Hugging Face's models to measured passes: ``python -m research.passes``.

Passes of calibration/own/h200_sxm/passes.jsonl (``python -m bench.passes`` on one H200) beside what a projection makes
of the same model cut to as many layers, on one GPU, without what users' runs add. The fit gives the defaults of
FsdpTerms; linear attention without its kernels (plain torch) is printed and not fitted.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from rlsim import load_scenario
from rlsim.costs.prices import PriceInputs
from rlsim.costs.trainer.layout import MicroBatches
from rlsim.costs.trainer.training import TrainingCosts
from rlsim.loading.models import load_card
from rlsim.schema.base import changed
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import FsdpTerms

PATH = Path(__file__).parents[1] / "calibration/own/h200_sxm/passes.jsonl"
LAUNCH_S = 9.963e-6
"""Host time of a launch on the measured machine (calibration/own/h200_sxm/measured/metadata.yaml)."""
FITTED = (
    "speed", "attention_flops_per_s", "elementwise_passes", "logits_bytes", "layer_launches", "grouped_launches",
    "expert_launches", "optimizer_bytes",
)  # fmt: skip
PLAIN_TORCH = "qwen3.5-9b"
"""Measured without the kernels of its linear attention, which trainers of such models bring."""
ROBUST = 0.1
"""Error from which a pass counts less than its square."""

WITHIN = math.log(2.0)
"""Logarithm of the factor from the shipped terms within which the fit looks; one at its end would say so."""


@dataclass(frozen=True)
class Pass:
    """A measured pass and the scenario of its model and batch."""

    kind: str
    shape: dict[str, Any]
    seconds: float
    scenario: Scenario

    @property
    def fitted(self) -> bool:
        """Whether it tells the terms; copies of FSDP are in those that ran under it. Adapters and Liger's kernels were
        measured after the fit and take terms of other trainers: they say how far these hold."""
        further = self.shape.get("lora_rank") or self.shape.get("liger")
        return bool(self.shape["model"] != PLAIN_TORCH and self.shape["fsdp"] and not further)


def measured() -> Iterator[Pass]:
    """All passes of the file; those that found no memory are left out."""
    for line in PATH.read_text(encoding="utf-8").splitlines()[1:]:
        record = json.loads(line)
        if record["seconds"] is not None:
            yield Pass(record["kind"], record["shape"], record["seconds"], scenario_of(record["shape"]))


def scenario_of(shape: dict[str, Any]) -> Scenario:
    """One GPU that trains the cut model on one micro-batch."""
    tokens, sequences = shape["tokens"], shape["sequences"]
    trainer = {
        "backend": "fsdp", "recompute": "full", "policy_logprobs": True, "reference_logprobs": False,
        "micro_batch_tokens": sequences * tokens, "host_launch_s": LAUNCH_S,
    }  # fmt: skip
    if shape.get("lora_rank"):
        trainer["lora_rank"] = shape["lora_rank"]
    trainer["fused_kernels"] = shape.get("liger", False)
    if shape["experts"]:
        trainer["expert_products"] = "grouped" if shape["experts"] == "grouped_mm" else "loop"
    scenario = load_scenario(
        {
            "name": "pass", "model": shape["model"], "hardware": "h200_sxm", "stack": "verl",
            "cluster": {"num_gpus": 1}, "trainer": trainer,
            "workload": {
                "prompts_per_step": 1, "generations_per_prompt": sequences, "max_sequence_tokens": tokens,
                "prompt_tokens": {"kind": "constant", "tokens": 1},
                "response_tokens": {"kind": "constant", "tokens": tokens - 1},
            },
        }
    )  # fmt: skip
    return changed(scenario, model=changed(load_card(shape["model"]), num_layers=shape["layers"]))


def predicted_s(one: Pass, terms: FsdpTerms) -> float:
    """Seconds of the pass under ``terms``, or of its optimizer step."""
    stack = one.scenario.stack
    assert stack is not None
    costs: TrainingCosts = PriceInputs(changed(one.scenario, stack=changed(stack, fsdp=terms))).trainer.costs
    if one.kind == "optimizer":
        return costs.update.optimizer_s
    sequences, tokens = one.shape["sequences"], one.shape["tokens"]
    batch = MicroBatches(1.0, sequences * tokens, sequences * tokens**2, 1)
    if one.kind == "logprob":
        return costs.forward(batch).seconds - terms.pass_fixed_s
    apart = costs.update.optimizer_s + costs.overheads.step_fixed_s + terms.pass_fixed_s
    return costs.step(batch).seconds - apart


def fit(passes: list[Pass]) -> FsdpTerms:
    """Terms at which the passes come out as measured, by robust least squares of the logarithms."""

    def terms(logs: list[float]) -> FsdpTerms:
        return FsdpTerms(**dict(zip(FITTED, map(math.exp, logs), strict=True)))

    def errors(logs: list[float]) -> list[float]:
        return [math.log(predicted_s(one, terms(logs)) / one.seconds) for one in passes]

    start = [math.log(getattr(FsdpTerms(), name)) for name in FITTED]
    bounds = np.subtract(start, WITHIN), np.add(start, WITHIN)
    found = least_squares(errors, start, loss="soft_l1", f_scale=ROBUST, diff_step=1e-3, bounds=bounds)
    return terms(list(found.x))


def main() -> None:
    """Print the fitted terms, every pass and the errors by kind."""
    passes = list(measured())
    terms = fit([one for one in passes if one.fitted])
    print({name: float(f"{getattr(terms, name):.3g}") for name in FITTED})
    errors: dict[str, list[float]] = defaultdict(list)
    for one in passes:
        error = predicted_s(one, terms) / one.seconds - 1.0
        if one.shape["fsdp"]:
            kernels = " LoRA" * bool(one.shape.get("lora_rank")) + " Liger" * one.shape.get("liger", False)
            errors[f"{one.kind} {one.shape['experts']}{kernels}"].append(error)
            if one.fitted:
                errors["all fitted"].append(error)
        print(f"{one.kind:9} {one.seconds * 1e3:8.1f} ms {error:+6.0%} {list(one.shape.values())}")
    for kind, found in errors.items():
        sizes = [abs(error) for error in found]
        print(f"{kind:24} {len(found):3} median {statistics.median(sizes):.0%}", end=" ")
        print(f"p90 {np.quantile(sizes, 0.9):.0%} bias {statistics.median(found):+.0%}")


if __name__ == "__main__":
    main()
