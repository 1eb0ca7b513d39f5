"""What a blame holds, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "rlsim.blame/1"


@dataclass(frozen=True)
class Idle:
    """GPU-seconds per step in which the GPUs of a pool do nothing, for one cause; share: of all of a step."""

    pool: str
    cause: str
    gpu_s: float
    share: float


@dataclass(frozen=True)
class Removal:
    """A cause taken away, on the same drawn work. step_s: of the step without it; saved_s: by it alone.

    chain_s: what it saves after those before it in the list were taken away too; these add up to all that is removed.
    One that would then cost time stays. why: it costs time alone or stays, else nothing.
    """

    cause: str
    how: str
    step_s: float
    saved_s: float
    chain_s: float
    why: str = ""


@dataclass(frozen=True)
class WhatIf:
    """A policy against the tail, tried on the same drawn work: step time, or the reason where it cannot run."""

    name: str
    how: str
    step_s: float | None
    reason: str = ""


@dataclass(frozen=True)
class Blame:
    """Idle time of a scenario's step by cause, what each removal gains, and tail policies as what-ifs.

    step_s, left_s: mean step, and without every cause. work_share: of all GPU-seconds in which the GPUs compute.
    """

    scenario: str
    digest: str
    num_gpus: int
    step_s: float
    left_s: float
    work_share: float
    idle: tuple[Idle, ...]
    removals: tuple[Removal, ...]
    what_ifs: tuple[WhatIf, ...]

    def as_dict(self) -> dict[str, Any]:
        """The form of blame.json."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Blame:
        """The blame that a blame.json holds. KeyError and TypeError where it is none."""
        values = {name: value for name, value in content.items() if name != "schema"}
        lists = {"idle": Idle, "removals": Removal, "what_ifs": WhatIf}
        values |= {name: tuple(kind(**one) for one in content[name]) for name, kind in lists.items()}
        return cls(**values)
