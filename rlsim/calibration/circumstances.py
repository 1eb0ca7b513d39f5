"""What a measurement carries with it: device, driver, torch, clocks, date, and the version of the benchmark itself."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

_SMI_FIELDS = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")
_FINGERPRINTED = ("device", "device_count", "torch", "driver", "benchmark_version", "grid")


def benchmark_version() -> str:
    """Hash of the sources that decide what is measured: an edited benchmark makes its old results stale."""
    digest = hashlib.sha256()
    for path in _measuring_sources():
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _measuring_sources() -> list[Path]:
    folder = Path(__file__).resolve().parent
    names = {
        "attention",
        "cases",
        "cell",
        "collectives",
        "dims",
        "grids",
        "moe",
        "operators",
        "operators_host",
        "operators_step",
        "operators_training",
        "reference_speculation",
        "rejection",
        "runner",
        "timing",
        "transformer",
        "workbench",
    }
    return [folder / f"{name}.py" for name in sorted(names)]


def describe(device: torch.device, grid: str) -> dict[str, Any]:
    """Circumstances of a run that starts now on ``device`` with the named grid."""
    found: dict[str, Any] = {
        "benchmark_version": benchmark_version(),
        "grid": grid,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device_type": device.type,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "host_cpu": _cpu_name(),
        "host_cores": os.cpu_count(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "load_at_start": round(os.getloadavg()[0], 2),
    }
    return {**found, **(_cuda(device) if device.type == "cuda" else _cpu(found))}


def fingerprint(circumstances: dict[str, Any]) -> str:
    """Identity of a run: measurements are continued only under the same device, driver, torch, benchmark and grid."""
    text = "|".join(f"{key}={circumstances.get(key)}" for key in _FINGERPRINTED)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def _cuda(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    at_start = clocks(device)
    return {
        "device": properties.name,
        "device_count": torch.cuda.device_count(),
        "device_memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "multiprocessors": properties.multi_processor_count,
        "capability": ".".join(str(part) for part in torch.cuda.get_device_capability(device)),
        "cuda": torch.version.cuda,
        "driver": at_start.get("driver_version"),
        "clocks_at_start": at_start,
    }


def _cpu(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "device": found["host_cpu"],
        "device_count": 1,
        "device_memory_bytes": found["host_memory_bytes"],
        "driver": None,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
