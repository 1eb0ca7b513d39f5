"""What a run assumes, in sentences; each names the key that changes it."""

from __future__ import annotations

from rlsim.report.format import number, percent, seconds
from rlsim.runs.chapters import checkpoint_seconds, state_bytes
from rlsim.schema.run import Checkpoint, Faults, RunConditions, SlowNodes, Stalls, Validation
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
    run = scenario.run or RunConditions()
    out = []
    if run.response_growth:
        points = ", ".join(f"{factor:g} at step {step:,}" for step, factor in run.response_growth)
        out.append(
            f"Response lengths are scaled before they are cut at the cap: {points}, linear in between "
            "(run.response_growth; stated)."
        )
    if run.validation is not None:
        out.append(_validation(run.validation))
    if run.checkpoint is not None:
        out.append(_checkpoint(scenario, run.checkpoint))
    if run.faults is not None:
        out.append(_faults(scenario, run.faults))
    out += _slower(run.stalls, run.slow_nodes)
    missing = [name for key, name in OPTIONAL.items() if not getattr(run, key)]
    if missing:
        out.append(f"Not in this run: {', '.join(missing)} (section run).")
    power = scenario.hardware.power_w
    out.append(
        f"Energy is at most that of all GPUs at their limit of {power.value:g} W all the time, hosts and cooling aside "
        f"(hardware.power_w, {power.source}); the busy share of their seconds is in run.json."
    )
    return tuple(out)


def _validation(validation: Validation) -> str:
    if validation.samples is None:
        what = f"takes {seconds(validation.seconds or 0.0)} (run.validation.seconds; stated)"
    else:
        what = (
            f"generates {validation.samples:,} samples with the lengths and the acceptance of its step "
            "(run.validation.samples)"
        )
    return f"Validation after every {validation.every_steps:,} steps {what}; nothing else runs meanwhile."


def _checkpoint(scenario: Scenario, checkpoint: Checkpoint) -> str:
    took = seconds(checkpoint_seconds(scenario, checkpoint))
    if checkpoint.bytes_per_s is not None:
        size, rate = state_bytes(scenario) / 1e12, checkpoint.bytes_per_s / 1e9
        took += f", {number(size)} TB at {number(rate)} GB/s (run.checkpoint.bytes_per_s)"
    share = percent(checkpoint.blocking_share)
    return (
        f"Checkpoints after every {checkpoint.every_steps:,} steps take {took}, {share} of it while training stops "
        "(run.checkpoint; stated)."
    )


def _faults(scenario: Scenario, faults: Faults) -> str:
    text = (
        f"One failure in {faults.gpu_hours_between:,.0f} GPU hours (run.faults.gpu_hours_between; stated). Of a "
        f"training GPU it restarts the run within {seconds(faults.restart_s)} from its last checkpoint with an empty "
        "pool (run.faults.restart_s)"
    )
    if scenario.cluster.colocated:
        return f"{text}; every GPU trains."
    lost = "prefills its requests again" if faults.keep_tokens else "begins its requests anew"
    return (
        f"{text}; of a generating one its replica is away for {seconds(faults.replica_restart_s)} and {lost}, "
        "while the others take over its share (run.faults.replica_restart_s, keep_tokens)."
    )


def _slower(stalls: Stalls | None, slow: SlowNodes | None) -> list[str]:
    out = []
    if stalls is not None:
        out.append(
            f"{percent(stalls.probability, 1)} of the weight publications stall for {seconds(stalls.seconds)} "
            "(run.stalls; stated)."
        )
    if slow is not None:
        out.append(
            f"A node is slow by {slow.factor:g} in {percent(slow.share, 2)} of the steps; training waits for the "
            "slowest node, a synchronous rollout for the slowest replica, an asynchronous pool loses that share of its "
            "rate (run.slow_nodes; stated)."
        )
    return out
