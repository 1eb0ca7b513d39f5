"""One case measured: its sample and facts, or the reason why the device could not run it."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import replace

import torch

from bench import BenchError
from bench.cases import TRAINING_STEP, Case
from bench.measurements import Facts, Measurement, Sample
from bench.operators import prepare
from bench.timing import StopRule, Watch, measure, measure_host, measure_long
from bench.training import NEEDS_GRADIENTS, TAKES_MEMORY
from bench.workbench import UnsupportedError, Workbench

_FULL_MEMORY = 0.6
"""Share of device memory held by torch from which its caches are emptied between cases."""


_DIFFERENCES = (RuntimeError, TypeError, AttributeError, ValueError, AssertionError, LookupError, ImportError, OSError)
"""How one version of torch lacks what another has: the case is recorded with the reason, and the run goes on."""


class DeviceFailureError(BenchError):
    """The device answers nothing any more."""


def record_of(case: Case, on: Workbench, watch: Watch, rule: StopRule) -> Measurement:
    """Sample and facts of one case, or why the device cannot run it."""
    if case.op == TRAINING_STEP:
        free(on)
    try:
        with torch.inference_mode(case.op not in NEEDS_GRADIENTS):
            record = _timed_record(case, on, watch, rule)
        _trim(on.device)
        return record
    except UnsupportedError as error:
        return Measurement(case, unsupported=str(error))
    except torch.OutOfMemoryError:
        free(on)
        return Measurement(case, unsupported="not enough device memory")
    except _DIFFERENCES as error:
        _require_alive(on.device, case, error)
        return Measurement(case, unsupported=(str(error) or type(error).__name__).splitlines()[0])


def _timed_record(case: Case, on: Workbench, watch: Watch, rule: StopRule) -> Measurement:
    started, watched = time.perf_counter(), case.op in TAKES_MEMORY and on.device.type == "cuda"
    before = _allocated(on.device) if watched else 0
    prepared = prepare(case, on)
    ready = time.perf_counter()

    def timed() -> Sample:
        if prepared.host_only:
            return watch.mark(measure_host(prepared.calls, on.device, rule))
        if prepared.long:
            return watch.mark(measure_long(prepared.calls, on.device, rule))
        return watch.mark(measure(prepared.calls, on.device, prepared.mode, rule))

    sample = timed()
    while sample.throttled and watch.cool_down():
        sample = timed()
    facts = replace(
        prepared.facts,
        peak_bytes=torch.cuda.max_memory_allocated(on.device) - before if watched else None,
        reserved_bytes=torch.cuda.max_memory_reserved(on.device) if watched else None,
        prepare_s=round(ready - started, 6),
        measure_s=round(time.perf_counter() - ready, 6),
    )
    return checked(case, sample, facts)


def _allocated(device: torch.device) -> int:
    """Bytes of the tensors that are alive; peaks count from now."""
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


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


def free(on: Workbench) -> None:
    """Give back what is kept between cases."""
    for slot in ("weights", "model"):
        on.memory.pop(slot, None)
    if on.device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _require_alive(device: torch.device, case: Case, error: Exception) -> None:
    """BenchError where the device answers nothing any more (a fault that stays until the process ends)."""
    if device.type != "cuda":
        return
    try:
        torch.ones(1, device=device).item()
    except RuntimeError:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DeviceFailureError(
            f"the device failed at '{case.key}' ({reason}); run the same command again to continue"
        ) from error
