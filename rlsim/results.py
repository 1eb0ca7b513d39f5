"""The answer as data: what `project` returns, what the reports read and what projection.json holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

SCHEMA = "rlsim.projection/1"
PHASES = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "refit_s", "exposed_generation_s")
"""Phase names of the contract. Synchronous steps add up data, prepare, generation, logprob and train."""


@dataclass(frozen=True)
class Quantity:
    """A number with its 90 % interval."""

    mean: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Rounded to 9 significant digits, so that files stay readable."""
        return {"mean": _short(self.mean), "low": _short(self.low), "high": _short(self.high)}


@dataclass(frozen=True)
class Share:
    """One part of a phase: seconds per step, what bounds it, and its root: measured, modelled or assumed."""

    phase: str
    name: str
    seconds: float
    bound: str
    root: str


@dataclass(frozen=True)
class Span:
    """What one actor did when: ``actor`` is a lane of the timeline (trainer, replica 3...), times in seconds."""

    actor: str
    phase: str
    step: int
    start_s: float
    end_s: float
    detail: str = ""


@dataclass(frozen=True)
class Curve:
    """A counter over time for the timeline: ``values[i]`` holds from ``times_s[i]`` to the next time."""

    name: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class MemoryUse:
    """Bytes per GPU of one pool in its fullest phase, by what holds them, against what is there."""

    pool: str
    parts: dict[str, float]
    available_bytes: float

    @property
    def total_bytes(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Arm:
    """One side of the comparison: the autoregressive baseline or the candidate.

    staleness: share of consumed samples by age in steps. facts: plain numbers worth showing (name -> value), such as
    ``replicas``, ``running_sequences_per_replica``, ``iteration_ms_full_batch``, ``preemptions``.
    """

    method: str
    draft_length: int
    acceptance_length: Quantity
    step_s: Quantity
    phases: dict[str, Quantity]
    tokens_per_s_per_gpu: Quantity
    memory: tuple[MemoryUse, ...]
    shares: tuple[Share, ...]
    staleness: dict[int, float]
    facts: dict[str, float]
    spans: tuple[Span, ...] = field(default=(), repr=False)
    curves: tuple[Curve, ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The contract's form."""
        return {
            "method": self.method,
            "draft_length": self.draft_length,
            "acceptance_length": self.acceptance_length.as_dict(),
            "step_s": self.step_s.as_dict(),
            "phases": {name: self.phases[name].as_dict() for name in PHASES},
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.as_dict(),
            "memory": {
                use.pool: {
                    "parts_bytes": {k: _short(v) for k, v in use.parts.items()},
                    "total_bytes": _short(use.total_bytes),
                    "available_bytes": _short(use.available_bytes),
                }
                for use in self.memory
            },
            "bounds": [
                {"phase": s.phase, "part": s.name, "seconds": _short(s.seconds), "bound": s.bound, "root": s.root}
                for s in self.shares
            ],
            "staleness": {str(age): _short(share) for age, share in sorted(self.staleness.items())},
            "facts": {k: _short(v) for k, v in self.facts.items()},
        }


@dataclass(frozen=True)
class Projection:
    """The answer to a scenario: baseline and candidate on the same drawn work."""

    scenario: str
    question: str
    digest: str
    seed: int
    mode: str
    num_gpus: int
    model: str
    hardware: str
    baseline: Arm
    candidate: Arm
    rollout_speedup: Quantity
    end_to_end_speedup: Quantity
    provenance: dict[str, float]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    resolved_scenario: str = field(repr=False, default="")

    def as_dict(self) -> dict[str, Any]:
        """The contract's form (house rules, projection.json)."""
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "digest": self.digest,
            "seed": self.seed,
            "baseline": self.baseline.as_dict(),
            "candidate": self.candidate.as_dict(),
            "rollout_speedup": self.rollout_speedup.as_dict(),
            "end_to_end_speedup": self.end_to_end_speedup.as_dict(),
            "provenance": {k: float(v) for k, v in self.provenance.items()},
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }

    def to_json(self) -> str:
        """projection.json, the same bytes for the same scenario and seed."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"


def _short(value: float) -> float:
    return float(f"{value:.9g}")
