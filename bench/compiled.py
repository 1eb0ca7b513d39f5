"""Cases that torch.compile makes, measured in a process of their own: a compiler may take long, hang or fail."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import torch

from bench import isolated
from bench.cases import Case, ModelDims
from bench.measurements import Measurement
from bench.recording import record_of
from bench.timing import StopRule, Watch
from bench.workbench import Workbench

LIMIT_S = 60.0
"""Most seconds for all cases, compiling and the start of the process included; fewer where a budget ends."""


def measure_compiled(
    cases: Sequence[Case],
    device: torch.device,
    models: Mapping[str, ModelDims],
    rule: StopRule,
    limit_s: float = LIMIT_S,
) -> Iterator[Measurement]:
    """Records of ``cases``, as they come. Raises UnsupportedError where the process ends early or the time is used
    up.
    """
    with isolated.serving(recorder, (str(device), dict(models), rule), limit_s) as ask:
        for case in cases:
            yield ask(case)


def recorder(device_name: str, models: Mapping[str, ModelDims], rule: StopRule) -> isolated.Ask:
    """Answers a case with its record."""
    # Workers of the compiler would outlive this process when it is killed.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    on, watch = Workbench(device, models), Watch(device)

    def answer(case: Case) -> Measurement:
        return record_of(case, on, watch, rule)

    return answer
