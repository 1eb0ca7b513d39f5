"""What backs a choice of model, device and engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlsim.results.projection import Provenance, Support
from rlsim.results.record import Number, Record, Rounded6


class TableSet(Record):
    """Measured operator tables. origin: software they were measured with; operators: those of the engine's folder."""

    system: str
    engine: str
    origin: str
    operators: tuple[str, ...]


class StepPart(Record):
    """A part of a plain step: its seconds, and what most of them rest on."""

    phase: str
    part: str
    seconds: Rounded6
    root: str


class Tried(Record):
    """A feature, tried. reason: why it is refused; empty where it projects. measured: share of its time, if it does."""

    name: str
    reason: str
    measured: Number | None


class Coverage(Record):
    """What backs ``model`` on ``device`` with ``engine``.

    tables: those of the device and engine, None without. releases: of the engine, with the measured iterations behind
    each. counts: measured times of each kind that share (model, device, software), by what they share. scenario: YAML
    of what was projected on ``num_gpus``; parts: of its step, largest first. tried: features on top.
    """

    schema_: Literal["rlsim.support/2"] = Field(default="rlsim.support/2", alias="schema")
    model: str
    device: str
    engine: str
    tables: TableSet | None
    releases: dict[str, int]
    counts: dict[str, dict[str, int]]
    scenario: str
    num_gpus: int = Field(exclude=True)
    provenance: Provenance
    parts: tuple[StepPart, ...]
    support: Support | None
    tried: tuple[Tried, ...]
