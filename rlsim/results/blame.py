"""What a blame holds: idle time by cause, what each removal gains, policies against the tail."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlsim.results.record import Number, Record


class Idle(Record):
    """GPU-seconds per step in which the GPUs of a pool do nothing, for one cause; share: of all of a step."""

    pool: str
    cause: str
    gpu_s: Number
    share: Number


class Removal(Record):
    """A cause taken away, on the same drawn work. step_s: of the step without it; saved_s: by it alone.

    chain_s: what it saves after those before it in the list were taken away too; these add up to all that is removed.
    One that would then cost time stays. why: it costs time alone or stays, else nothing.
    """

    cause: str
    how: str
    step_s: Number
    saved_s: Number
    chain_s: Number
    why: str = ""


class WhatIf(Record):
    """A policy against the tail, tried on the same drawn work: step time, or the reason where it cannot run."""

    name: str
    how: str
    step_s: Number | None
    reason: str = ""


class Blame(Record):
    """Idle time of a scenario's step by cause, what each removal gains, and tail policies as what-ifs.

    step_s, left_s: mean step, and without every cause. work_share: of all GPU-seconds in which the GPUs compute.
    """

    schema_: Literal["rlsim.blame/1"] = Field(default="rlsim.blame/1", alias="schema")
    scenario: str
    digest: str
    num_gpus: int
    step_s: Number
    left_s: Number
    work_share: Number
    idle: tuple[Idle, ...]
    removals: tuple[Removal, ...]
    what_ifs: tuple[WhatIf, ...]
