"""Golden predictions: ``python -m tests.golden.regenerate`` writes anchors.csv anew, from the root of the checkout.

An anchor is one arm of a scenario or one published run, simulated with seed 0 and two replications; its step and all
its phases are kept, so that a drift can be told by phase. The test compares step_s and generation_s. Regenerate after a
change that is meant to move predictions, and say in the commit why they moved.
"""

import csv
import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlsim.evidence.published import published_table
from rlsim.evidence.steps import scenario_of
from rlsim.evidence.tables import read_table
from rlsim.files.reading import data_folder
from rlsim.loading.scenario import load_scenario, scenario_digest
from rlsim.projection.project import project
from rlsim.results import PHASES, Variant
from rlsim.schema.scenario import Scenario

ANCHORS = Path(__file__).with_name("anchors.csv")
COLUMNS = ("anchor", "inputs", "calibration", "step_s", *PHASES)
SETTINGS = ("simulation.seed=0", "simulation.replications=2")
SCENARIOS = ("quickstart", "qwen8b_rl_zero", "qwen8b_rl_think", "qwen8b_async_lag1", "qwen235b_512", "qwen235b_2048")
ROWS = ("nemorl-v0.3.0-h100-llama3.1-8b-grpo-sync-8g", "nemorl-v0.3.0-h100-llama3.1-8b-grpo-sync-8g-dtensor",
        "nemorl-v0.4.0-h100-llama3.1-8b-grpo-sync-16g", "nemorl-v0.4.0-h100-dsv3-grpo-sync-256g",
        "nemorl-v0.4.0-h100-qwen3-235b-grpo-async1-256g", "nemorl-v0.5.0-h100-llama3.1-8b-grpo-async1-16g-fp8",
        "nemorl-v0.5.0-h100-dsv3-dapo-sync-512g", "nemorl-v0.5.0-gb200-llama3.1-8b-grpo-sync-8g",
        "nemorl-v0.5.0-gb200-qwen3-30b-a3b-grpo-sync-16g", "nemorl-v0.6.0-h100-qwen3-235b-grpo-sync-128g",
        "nemorl-v0.6.0-h100-qwen3-30b-a3b-grpo-async1-32g", "nemorl-v0.6.0-gb200-dsv3-grpo-sync-128g",
        "nemorl-v0.6.0-gb200-qwen3-235b-grpo-async1-128g")  # fmt: skip


@dataclass(frozen=True)
class Anchor:
    """One prediction: digests of its inputs and of all tables and fitted parameters, seconds of the step and of every
    phase.
    """

    name: str
    inputs: str
    calibration: str
    seconds: Mapping[str, float]


@functools.cache
def calibration_digest() -> str:
    """SHA-256, first 12 hex digits, of the fitted parameters and operator tables that come with rlsim."""
    digest, folder = hashlib.sha256(), data_folder("calibration")
    names = (path.relative_to(folder) for kind in ("*.yaml", "*.npz") for path in folder.rglob(kind))
    for name in sorted(name for name in names if name.parts[0] != "published"):
        digest.update(name.as_posix().encode() + (folder / name).read_bytes())
    return digest.hexdigest()[:12]


def predict_anchors() -> Iterator[Anchor]:
    for name in SCENARIOS:
        scenario = load_scenario(name, SETTINGS)
        projection = project(scenario)
        yield _anchor(f"{name} baseline", scenario, projection.baseline)
        yield _anchor(f"{name} candidate", scenario, projection.candidate)
    cells = {record.cells["id"]: record.cells for record in read_table(published_table("rl_steps.csv"), ("id",))}
    for name in ROWS:
        scenario = scenario_of(cells[name], seed=0, replications=2)
        yield _anchor(name, scenario, project(scenario).candidate)


def _anchor(name: str, scenario: Scenario, arm: Variant) -> Anchor:
    seconds = {"step_s": arm.step_s.mean, **{phase: arm.phases[phase].mean for phase in PHASES}}
    return Anchor(name, scenario_digest(scenario), calibration_digest(), seconds)


def read_anchors() -> dict[str, Anchor]:
    with ANCHORS.open(newline="", encoding="utf-8") as file:
        return {
            cells["anchor"]: Anchor(
                cells["anchor"],
                cells["inputs"],
                cells["calibration"],
                {q: float(cells[q]) for q in ("step_s", *PHASES)},
            )
            for cells in csv.DictReader(file)
        }


def drift(old: Anchor, new: Anchor, tolerance: float) -> str:
    """What moved by more than ``tolerance`` (relative), with old, new and cause; empty where nothing did."""
    moved = [q for q in ("step_s", "generation_s")
             if abs(new.seconds[q] - old.seconds[q]) > tolerance * max(abs(old.seconds[q]), 1e-9)]  # fmt: skip
    if not moved:
        return ""
    figures = ", ".join(f"{q} {old.seconds[q]:.4g} -> {new.seconds[q]:.4g}" for q in moved)
    return f"{new.name}: {figures}; cause: {cause(old, new)}"


def cause(old: Anchor, new: Anchor) -> str:
    """Which input changed, if one did, and the phase that moved most."""
    what = "the code changed"
    if old.calibration != new.calibration:
        what = "operator tables or fitted parameters in calibration/ changed"
    if old.inputs != new.inputs:
        what = "the scenario, its model card or its hardware profile changed"
    phase = max(PHASES, key=lambda name: abs(new.seconds[name] - old.seconds[name]))
    return f"{what}, most in {phase} {old.seconds[phase]:.4g} -> {new.seconds[phase]:.4g}"


def main() -> None:
    before = read_anchors() if ANCHORS.exists() else {}
    found = list(predict_anchors())
    with ANCHORS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for anchor in found:
            seconds = [f"{anchor.seconds[q]:.6g}" for q in ("step_s", *PHASES)]
            writer.writerow([anchor.name, anchor.inputs, anchor.calibration, *seconds])
            if anchor.name in before:
                print(drift(before[anchor.name], anchor, 1e-5) or f"{anchor.name}: unchanged")
    print(f"{len(found)} anchors in {ANCHORS.name}")


if __name__ == "__main__":
    main()
