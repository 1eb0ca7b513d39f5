"""One case measured: its sample and facts, or the reason why the device could not run it."""

from __future__ import annotations

import math

import torch

from bench import BenchError
from bench.cases import Case
from bench.measurements import Facts, Measurement, Sample
from bench.operators import prepare
from bench.timing import StopRule, Watch, measure, measure_host
from bench.training import NEEDS_GRADIENTS
from bench.workbench import UnsupportedError, Workbench

_FULL_MEMORY = 0.6
"""Share of device memory held by torch from which its caches are emptied between cases."""


def record_of(case: Case, on: Workbench, watch: Watch, rule: StopRule) -> Measurement:
    """Sample and facts of one case, or why the device cannot run it."""
    try:
        with torch.inference_mode(case.op not in NEEDS_GRADIENTS):
            record = _timed_record(case, on, watch, rule)
        _trim(on.device)
        return record
    except UnsupportedError as error:
        return Measurement(case, unsupported=str(error))
    except torch.OutOfMemoryError:
        _free(on)
        return Measurement(case, unsupported="not enough device memory")
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:  # torch differs by version and device
        _require_alive(on.device, case, error)
        return Measurement(case, unsupported=(str(error) or type(error).__name__).splitlines()[0])


def _timed_record(case: Case, on: Workbench, watch: Watch, rule: StopRule) -> Measurement:
    prepared = prepare(case, on)

    def timed() -> Sample:
        if prepared.host_only:
            return watch.mark(measure_host(prepared.calls, on.device, rule))
        return watch.mark(measure(prepared.calls, on.device, prepared.mode, rule))

    sample = timed()
    while sample.throttled and watch.cool_down():
        sample = timed()
    return checked(case, sample, prepared.facts)


def checked(case: Case, sample: Sample, facts: Facts) -> Measurement:
    """Record of a sample. BenchError where its time is not finite and positive: it must not pass as measured."""
    if not (math.isfinite(sample.seconds_median) and sample.seconds_median > 0 and math.isfinite(sample.spread)):
        raise BenchError(
            f"case '{case.key}' took {sample.seconds_median} s, which cannot be; nothing was overwritten, run again"
        )
    return Measurement(case, sample, facts=facts)


def _trim(device: torch.device) -> None:
    """Give cached blocks back where they would soon be in the way of the next case."""
    if device.type != "cuda":
        return
    if torch.cuda.memory_reserved(device) > _FULL_MEMORY * torch.cuda.get_device_properties(device).total_memory:
        torch.cuda.empty_cache()


def _free(on: Workbench) -> None:
    for slot in ("weights", "model"):
        on.memory.pop(slot, None)
    if on.device.type == "cuda":
        torch.cuda.empty_cache()


def _require_alive(device: torch.device, case: Case, error: Exception) -> None:
    """BenchError where the device answers nothing any more (a fault that stays until the process ends)."""
    if device.type != "cuda":
        return
    try:
        torch.ones(1, device=device).item()
    except RuntimeError:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BenchError(
            f"the device failed at '{case.key}' ({reason}); run the same command again to continue"
        ) from error
