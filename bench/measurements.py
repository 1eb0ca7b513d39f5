"""What a run measured, as typed records, and the file that carries it (standard library only)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import BenchError
from bench.cases import Case, ModelDims, case_record, known_fields, models_from, read_json, write_whole

SCHEMA = "rlsim.measurements/2"
KEPT = "what was measured before is kept, run the same command again to continue"


@dataclass(frozen=True)
class Sample:
    """Seconds of one call: median, 5 % and 95 % quantile over the passes; spread is the half interquartile range over
    the median.

    ``throttled``: the reference product next to it ran slower than at its best, so that the device was slowed down or
    shared.
    """

    seconds_median: float
    seconds_low: float
    seconds_high: float
    repeats: int
    spread: float
    throttled: bool = False


@dataclass(frozen=True)
class Facts:
    """What was seen on the way: the kernel that ran, and of routed experts how many took part and how unevenly (load
    of the busiest over the mean).

    kernels: how many one call launches on a GPU, copies included. host_s: host seconds to launch them all, while the
    device may still be at work. optimizer_s: seconds of a training step's update. peak_bytes: most device memory that
    tensors took during the case beyond what was allocated before it; reserved_bytes: most that torch held of the
    device; both of training on a GPU. prepare_s, measure_s: seconds that the run spent on the case.
    """

    kernel: str = ""
    active_experts: float | None = None
    imbalance: float | None = None
    kernels: int | None = None
    host_s: float | None = None
    optimizer_s: float | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    prepare_s: float | None = None
    measure_s: float | None = None


@dataclass(frozen=True)
class Measurement:
    """One case with its sample, or with the reason why the device could not run it."""

    case: Case
    sample: Sample | None = None
    unsupported: str = ""
    facts: Facts = field(default_factory=Facts)
    remeasured: bool = False

    @property
    def seconds(self) -> float:
        """Median seconds of one call; NaN where the device could not run it."""
        return self.sample.seconds_median if self.sample else float("nan")

    def as_json(self) -> dict[str, object]:
        """The record as a journal and measurements.json hold it."""
        return {**asdict(self), "case": case_record(self.case)}


def measurement_from(content: Mapping[str, Any]) -> Measurement:
    """The inverse of :meth:`Measurement.as_json`. Raises KeyError or TypeError where something is missing."""
    sample = content["sample"]
    return Measurement(
        known_fields(Case, content["case"]),
        None if sample is None else known_fields(Sample, sample),
        str(content["unsupported"]),
        known_fields(Facts, content["facts"]),
        bool(content["remeasured"]),
    )


@dataclass(frozen=True)
class Metadata:
    """Device, software, date and version of the benchmark that a measurement was made with.

    cases: name of the case list. l2_bytes: None where the device does not tell. clocks: driver, clocks, power limit and
    temperature at start and end, as nvidia-smi gives them.
    """

    benchmark_version: str
    cases: str
    date: str
    device: str
    device_type: str
    device_count: int
    device_memory_bytes: int
    torch: str
    host_cpu: str
    host_memory_bytes: int
    numpy: str = ""
    python: str = ""
    machine: str = ""
    host_cores: int = 0
    threads: int = 0
    omp_wait_policy: str | None = None
    load_at_start: float = 0.0
    l2_bytes: int | None = None
    multiprocessors: int | None = None
    capability: str | None = None
    cuda: str | None = None
    driver: str | None = None
    clocks_at_start: Mapping[str, str] = field(default_factory=dict)
    clocks_at_end: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurements:
    """A run. missing: cases of its list that were not measured before its budget ended; 0 of a complete one."""

    metadata: Metadata
    models: Mapping[str, ModelDims]
    records: Sequence[Measurement]
    missing: int = 0

    def of(self, *ops: str) -> list[Measurement]:
        """The measured records of operators ``ops``; of all where none is named."""
        return [record for record in self.records if record.sample and (not ops or record.case.op in ops)]


def write_measurements(path: Path, whole: Measurements) -> None:
    """Replace ``path`` by ``whole``. BenchError where it cannot be written."""
    content = {
        "schema": SCHEMA,
        "metadata": asdict(whole.metadata),
        "models": {name: asdict(dims) for name, dims in whole.models.items()},
        "missing": whole.missing,
        "measurements": [record.as_json() for record in whole.records],
    }
    text = json.dumps(content, allow_nan=False, indent=1) + "\n"
    write_whole(path, text, f"cannot write {path}; {KEPT}")


def read_measurements(path: Path) -> Measurements:
    """Content of a measurements.json. BenchError where it is missing or none."""
    content = read_json(path, SCHEMA, "measurement; an interrupted run leaves none, run it again to the end")
    try:
        records = [measurement_from(record) for record in content["measurements"]]
        metadata, models = known_fields(Metadata, content["metadata"]), models_from(content["models"])
        return Measurements(metadata, models, records, int(content.get("missing", 0)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchError(f"{path} is damaged: {str(error)[:60]}") from error
