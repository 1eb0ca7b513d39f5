"""What a run of the loop comes to: the mean of its measured steps, by phase, and what else ran on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from bench import BenchError
from bench.loop.events import PHASES, Event, EventLog
from bench.loop.settings import LoopSettings
from bench.loop.together import run_together

POOLS = ("generator", "trainer")
SCHEMA = "rlsim.loop/1"
Row = dict[str, Any]


def run_loop(settings: LoopSettings, say: Callable[[str], None] = lambda line: None) -> EventLog:
    """Run one configuration; its events."""
    if settings.placement == "shared":
        return run_together(settings, say)
    from bench.loop.apart import run_apart

    return run_apart(settings, say)


def require_device(device: str) -> None:
    """BenchError where this machine lacks it."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BenchError("device 'cuda': torch finds no CUDA GPU here")


def steps_of(settings: LoopSettings, events: list[Event]) -> list[dict[str, float]]:
    """Measured steps: ``measured_s``, every phase, ``idle_s`` of generator and trainer, and others' CPU seconds."""
    wanted = range(settings.warmup_steps, settings.trained_steps)
    by_kind = {kind: [one for one in events if one["event"] == kind] for kind in ("step", "phase", "iteration")}
    out = []
    for one in (step for step in by_kind["step"] if step["step"] in wanted):
        phases = {phase["phase"]: phase["seconds"] for phase in by_kind["phase"] if phase["step"] == one["step"]}
        row = {"measured_s": one["seconds"], **{name: phases.get(name, 0.0) for name in PHASES}}
        begin, end = one["at_s"], one["at_s"] + one["seconds"]
        if settings.placement == "split":
            inside = (min(i["at_s"] + i["seconds"], end) - max(i["at_s"], begin) for i in by_kind["iteration"])
            row["generation_s"] = sum(max(0.0, seconds) for seconds in inside)
            row["generator_idle_s"] = max(0.0, one["seconds"] - row["generation_s"])
            row["trainer_idle_s"] = row["exposed_generation_s"]
        else:
            row["exposed_generation_s"], row["refit_s"] = row["generation_s"], row["prepare_s"]
            row["generator_idle_s"] = row["trainer_idle_s"] = 0.0
        out.append({**row, "reward": one["reward"], "others_cpu_s": one["others_cpu_s"], "steal_s": one["steal_s"]})
    return out


def row_of(settings: LoopSettings, events: list[Event]) -> Row:
    """The result of one configuration, with the keys of docs/contracts.md; ``predicted_s`` is null until somebody
    predicts."""
    steps = steps_of(settings, events)
    mean = {name: round(float(np.mean([step[name] for step in steps])), 6) for name in steps[0]}
    return {
        "name": settings.name,
        "measured_s": mean["measured_s"],
        "predicted_s": None,
        "steps_s": [round(step["measured_s"], 6) for step in steps],
        "phases": {name: {"measured_s": mean[name], "predicted_s": None} for name in PHASES},
        "idle": {name: {"measured_s": mean[f"{name}_idle_s"], "predicted_s": None} for name in POOLS},
        "reward": mean["reward"],
        "tokens_per_verification": tokens_per_verification(events),
        "others_cpu_s": mean["others_cpu_s"],
        "steal_s": mean["steal_s"],
        "memory": memory_of(events),
        "settings": {name: value for name, value in asdict(settings).items() if name != "lengths"},
    }


def memory_of(events: Iterable[Event]) -> dict[str, int]:
    """Largest peaks of device memory of a run, bytes by ``generation_peak_bytes`` and the like; empty on a CPU."""
    found: dict[str, int] = {}
    for one in events:
        for name in (f"{half}_{kind}_bytes" for half in ("generation", "training") for kind in ("peak", "reserved")):
            if name in one:
                found[name] = max(found.get(name, 0), one[name])
    return found


def tokens_per_verification(events: Iterable[Event]) -> float:
    """Accepted tokens of a sequence in an iteration that decodes it, mean; whole verifications, as engines count."""
    decoded = [one for one in events if one["event"] == "iteration" and one["decoding"]]
    count = sum(one["decoding"] for one in decoded)
    return round(sum(one["accepted_tokens"] for one in decoded) / count, 4) if count else 0.0
