"""What a measurement carries with it: device, driver, torch, clocks, date, and the version of the benchmark itself."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import subprocess
from pathlib import Path

import numpy
import torch

from bench.measurements import Metadata

_SMI_FIELDS = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")


def benchmark_version() -> str:
    """Hash of all sources of this folder: an edited benchmark makes its old results stale."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def describe(device: torch.device, cases: str) -> Metadata:
    """Metadata of a run that starts now on ``device`` with the case list named ``cases``."""
    on_gpu, cpu = device.type == "cuda", _cpu_name()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    at_start = clocks(device) if on_gpu else {}
    return Metadata(
        benchmark_version=benchmark_version(),
        cases=cases,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        device=properties.name if properties else cpu,
        device_type=device.type,
        device_count=torch.cuda.device_count() if on_gpu else 1,
        device_memory_bytes=properties.total_memory if properties else memory,
        torch=str(torch.__version__),
        numpy=numpy.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        host_cpu=cpu,
        host_cores=os.cpu_count() or 1,
        host_memory_bytes=memory,
        threads=torch.get_num_threads(),
        omp_wait_policy=os.environ.get("OMP_WAIT_POLICY"),
        load_at_start=round(os.getloadavg()[0], 2),
        l2_bytes=getattr(properties, "L2_cache_size", None),
        multiprocessors=getattr(properties, "multi_processor_count", None),
        capability=".".join(str(part) for part in torch.cuda.get_device_capability(device)) if on_gpu else None,
        cuda=torch.version.cuda if on_gpu else None,
        driver=at_start.get("driver_version"),
        clocks_at_start=at_start,
    )


def fingerprint(metadata: Metadata) -> str:
    """Identity of a run: measurements are continued only under the same device, driver, torch, benchmark and cases."""
    identity = (
        metadata.device, metadata.device_count, metadata.torch, metadata.driver, metadata.benchmark_version,
        metadata.cases,
    )  # fmt: skip
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def clocks(device: torch.device) -> dict[str, str]:
    """Driver, clocks, power limit and temperature as nvidia-smi gives them now; empty without it."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    chosen = f"GPU-{uuid}" if uuid else str(device.index or 0)
    command = ["nvidia-smi", f"--id={chosen}", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_SMI_FIELDS, (field.strip() for field in out.split(",")), strict=False))


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
