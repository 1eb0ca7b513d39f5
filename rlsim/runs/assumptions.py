"""What a run assumes, in sentences; each names the key that changes it."""

from __future__ import annotations

from rlsim.projection.model_assumptions import said
from rlsim.report.format import number, percent, seconds
from rlsim.runs.chapters import checkpoint_seconds, state_bytes
from rlsim.schema.run import Checkpoint, Faults, RunConditions, Validation
from rlsim.schema.scenario import Scenario

OPTIONAL = {
    "response_growth": "growth of the responses",
    "validation": "validation",
    "checkpoint": "checkpoints",
    "faults": "failures",
    "stalls": "stalls of the weight publication",
    "slow_nodes": "slow nodes",
}


def run_assumptions(scenario: Scenario) -> tuple[str, ...]:
    """What the run assumes besides its steps, and what it leaves out."""
    run, power = scenario.run or RunConditions(), scenario.hardware.power_w
    out = []
    if run.response_growth:
        points = ", ".join(f"{factor:g} at step {step:,}" for step, factor in run.response_growth)
        out.append(said("run growth", points=points))
    if run.validation is not None:
        out.append(_validation(run.validation))
    if run.checkpoint is not None:
        out.append(_checkpoint(scenario, run.checkpoint))
    if run.faults is not None:
        out.append(_faults(scenario, run.faults))
    if (stalls := run.stalls) is not None:
        out.append(said("run stalls", share=percent(stalls.probability, 1), took=seconds(stalls.seconds)))
    if (slow := run.slow_nodes) is not None:
        out.append(said("run slow nodes", factor=slow.factor, share=percent(slow.share, 2)))
    missing = [name for key, name in OPTIONAL.items() if not getattr(run, key)]
    if missing:
        out.append(f"Not in this run: {', '.join(missing)} (section run).")
    return (*out, said("run energy", power=power.value, source=power.source))


def _validation(validation: Validation) -> str:
    form = "run validation stated" if validation.samples is None else "run validation"
    took = seconds(validation.seconds or 0.0)
    return said(form, steps=validation.every_steps, samples=validation.samples, took=took)


def _checkpoint(scenario: Scenario, checkpoint: Checkpoint) -> str:
    took = seconds(checkpoint_seconds(scenario, checkpoint))
    if checkpoint.bytes_per_s is not None:
        size, rate = state_bytes(scenario) / 1e12, checkpoint.bytes_per_s / 1e9
        took += f", {number(size)} TB at {number(rate)} GB/s (run.checkpoint.bytes_per_s)"
    return said("run checkpoint", steps=checkpoint.every_steps, took=took, share=percent(checkpoint.blocking_share))


def _faults(scenario: Scenario, faults: Faults) -> str:
    form = "run faults" if scenario.cluster.colocated else "run faults of pools"
    lost = "prefills its requests again" if faults.keep_tokens else "begins its requests anew"
    away, restart = seconds(faults.replica_restart_s), seconds(faults.restart_s)
    return said(form, hours=faults.gpu_hours_between, restart=restart, away=away, lost=lost)
