"""What a run of the loop did and when: events with times of the monotonic clock, which processes of a machine share."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.cases import write_whole
from bench.loop.settings import LoopSettings

PHASES = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "refit_s", "exposed_generation_s")
"""Names of the phases, as in projection.json."""
Event = dict[str, Any]
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def machine_s() -> tuple[float, float]:
    """CPU seconds that all cores together have worked so far, and that a hypervisor kept from them; zeros where the
    system does not tell (no /proc/stat). Good to a hundredth of a second."""
    try:
        ticks = [int(one) for one in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0, 0.0
    user, nice, system, _, _, irq, soft, steal = ticks
    return (user + nice + system + irq + soft) * _TICK_S, steal * _TICK_S


@dataclass
class EventLog:
    """Events of one process in their order. ``clock`` is the time at which its times begin; ``settle`` waits for the
    device."""

    clock: float
    settle: Callable[[], None] = lambda: None
    events: list[Event] = field(default_factory=list)

    def add(self, kind: str, start_s: float, seconds: float, **facts: Any) -> None:
        """Record what began at ``start_s`` (monotonic clock) and took ``seconds``."""
        at = round(start_s - self.clock, 6)
        self.events.append({"event": kind, "at_s": at, "seconds": round(seconds, 6), **facts})

    @contextmanager
    def phase(self, name: str, step: int) -> Iterator[None]:
        """Time a phase of a step, with the CPU time of this process in it."""
        start_s, cpu_s = time.monotonic(), time.process_time()
        yield
        self.settle()
        seconds = time.monotonic() - start_s
        self.add("phase", start_s, seconds, phase=name, step=step, cpu_s=round(time.process_time() - cpu_s, 6))


def journal_path(settings: LoopSettings, folder: Path) -> Path:
    """The file of a configuration's journal in ``folder``."""
    return folder / ("_".join(re.findall(r"[A-Za-z0-9.-]+", settings.name)) + ".jsonl")


def write_events(settings: LoopSettings, events: list[Event], folder: Path) -> Path:
    """Write a journal, settings first, one JSON object a line, whole or not at all; its file in ``folder``, called
    after the configuration. BenchError where that fails."""
    path = journal_path(settings, folder)
    lines = [{"event": "settings", "settings": asdict(settings)}, *events]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    write_whole(path, text, f"cannot write {path}")
    return path
