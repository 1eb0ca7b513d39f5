"""One task on models, devices and numbers of GPUs, and what was measured of them: what the site shows."""

from __future__ import annotations

from rlsim.results.record import Interval, Number, Record


class GridCell(Record):
    """A step of one task on so many GPUs of a device.

    words: overrides of the task's scenario that give it again. mode: sync or async. framework: a stack, whose times it
    takes. memory_share: of the fuller pool, of a GPU. step_s and what follows it: None where nothing fits, for
    ``reason``.
    """

    model: str
    device: str
    gpus: int
    mode: str
    framework: str
    words: tuple[str, ...] = ()
    step_s: Interval | None = None
    tokens_per_s_per_gpu: Number | None = None
    usd_per_step: Number | None = None
    memory_share: Number | None = None
    reason: str = ""


class Anchor(Record):
    """A measured step beside its prediction, in seconds. release: of the framework; low, high: of 90 %."""

    id: str
    model: str
    device: str
    mode: str
    release: str
    measured_s: Number
    predicted_s: Number
    low_s: Number | None
    high_s: Number | None


class PastScore(Record):
    """Errors in per cent that a release had, of so many rows of a kind. inside_pct: of 90 % intervals."""

    release: str
    date: str
    kind: str
    rows: int
    median_error_pct: Number
    p90_error_pct: Number
    inside_pct: Number
