"""Speed of a machine as the host of rollout engines, without a GPU: ``rlsim calibrate host``.

Schedulers and executors of engines are Python. Their time on two machines is taken to be in the ratio of one thread's
time for such work (host_rounds), longer where engines' processes are more than cores or slow each other down. Between
two machines measured so that is a ratio of measurements. Over the fit of engines it rests on a reference machine that
is none of those behind the fit, whose interpreters nobody measured: an interval holds what servers differ by.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rlsim.calibration import host_rounds
from rlsim.calibration.host_rounds import Rounds
from rlsim.errors import InputError
from rlsim.results.host import HostSpeed
from rlsim.schema.engine import HostClass

REFERENCE_ROUND_S = 1.08e-4
"""Round of the reference: one core of a 4th generation EPYC server (family 25, model 17, under KVM), CPython 3.11,
measured by this module on 2026-11-29 as the median of 30,000 rounds. CPython 3.13 took four fifths of it there."""
REFERENCE = "a core of a 4th generation EPYC server with CPython 3.11"
ALONE_S, BESIDE_S = 4.0, 4.0
"""Seconds of rounds alone, and of as many processes at once as engines run."""
START_S = 30.0
"""Within which processes start, besides."""
SHARED_BUSY, SHARED_WAIT = 1.25, 0.05
"""Slower beside the engines' own processes by which factor, or without a core for which share of the time, a processor
counts as shared. Assumption: twice what an idle machine shows."""


def engine_processes(gpus: int, engine_gpus: int) -> int:
    """Processes that engines on a node's ``gpus`` keep busy: of each a server, a core with the scheduler and a worker
    for every GPU (vLLM, docs/configuration/optimization.md, "CPU Resources for GPU Deployments": 2 + N cores at
    least). Those of SGLang are a tokenizer, a detokenizer and a scheduler for every GPU."""
    if gpus % engine_gpus:
        raise InputError(f"--engine-gpus {engine_gpus}: must divide --gpus ({gpus})")
    return gpus // engine_gpus * (2 + engine_gpus)


def usable_cores(root: Path = Path("/")) -> float:
    """Cores that this process may use: those it may be scheduled on, or less where a container's quota allows less.

    root: of the file system with sys and proc. Quotas are cgroup v2's cpu.max and v1's cpu.cfs_quota_us, of the
    process's group and of all above it.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(allowed), *_quotas(root)])


def _quotas(root: Path) -> list[float]:
    groups = _text(root / "proc/self/cgroup").splitlines()
    tops = {"": root / "sys/fs/cgroup", "cpu": root / "sys/fs/cgroup/cpu"}
    found = []
    for line in groups:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        top = next((tops[name] for name in controllers.split(",") if name in tops), None)
        if top is None:
            continue
        group = top / path.strip("/")
        # A container sees its own group as the top, whatever its path outside is called.
        for place in {top, group, *(one for one in group.parents if one.is_relative_to(top))}:
            found += _quota(place)
    return found


def _quota(group: Path) -> list[float]:
    """Cores by the quota of one group; [] without."""
    words = _text(group / "cpu.max").split()
    if len(words) != 2:
        words = [_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):  # "max", "-1", or no such file
        return []
    return [int(words[0]) / int(words[1])]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def processor(root: Path = Path("/")) -> tuple[str, bool]:
    """Name of the processor, and whether a hypervisor gives its cores."""
    lines = _text(root / "proc/cpuinfo").splitlines()
    pairs = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    name = next((value for key, value in pairs if key == "model name"), platform.processor() or platform.machine())
    return name, any(key == "flags" and "hypervisor" in value.split() for key, value in pairs)


def rounds_beside(processes: int, seconds: float) -> list[Rounds]:
    """Rounds of so many processes at once. Raises InputError where one cannot start or ends badly."""
    command = [sys.executable, str(host_rounds.__file__), f"{seconds:g}"]
    started: list[subprocess.Popen[str]] = []
    try:
        while len(started) < processes:  # one by one: those that started are ended whatever becomes of the next
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()  # ready
        for one in started:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        return [Rounds(**json.loads(one.communicate(timeout=seconds + START_S)[0])) for one in started]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise InputError(f"calibrate host: a process that measures did not end as it should ({error})") from None
    finally:
        for one in started:
            one.kill()
            one.wait()


def host_speed(cores: float, processes: int, alone: Rounds, beside: Sequence[Rounds], virtual: bool) -> HostSpeed:
    """What measured rounds say of a host. cores: that may be used; processes: that engines keep busy; beside: rounds of
    as many of them at once as there are whole cores; virtual: whether a hypervisor gives the cores."""
    single = alone.p50_s / REFERENCE_ROUND_S
    # Rounds by wall time: what waits for a core counts.
    busy_s = sum(each.p50_s / (1.0 - min(each.waited_share, 0.99)) for each in beside) / len(beside)
    busy, share = max(1.0, busy_s / alone.p50_s), max(1.0, processes / cores)
    kind, reason = _class_of(cores, processes, alone, busy, virtual)
    return HostSpeed(
        host=kind,
        reason=reason,
        slowdown=single * busy * share,
        single=single,
        busy=busy,
        share=share,
        round_s=alone.p50_s,
        jitter=alone.p99_s / alone.p50_s,
        waited_share=alone.waited_share,
        cores=cores,
        processes=processes,
        beside=len(beside),
        processor="",
        python=platform.python_version(),
    )


def _class_of(cores: float, processes: int, alone: Rounds, busy: float, virtual: bool) -> tuple[HostClass, str]:
    if cores < processes:
        return "few_cores", f"{cores:g} cores for {processes} processes of engines"
    if alone.waited_share > SHARED_WAIT:
        return "shared", f"without a core {alone.waited_share:.0%} of the time though nothing else of this command ran"
    if busy > SHARED_BUSY:
        return "shared", f"{busy:.2f} times slower beside as many processes as engines have"
    if virtual:
        return "rented", "cores of a hypervisor; nothing was amiss while this ran"
    return "server", "cores of its own, enough of them, and no slower together"


def measure_host(
    gpus: int = 8, engine_gpus: int = 1, alone_s: float = ALONE_S, beside_s: float = BESIDE_S
) -> HostSpeed:
    """Measure this machine as the host of engines of ``engine_gpus`` GPUs on ``gpus`` GPUs."""
    processes, cores = engine_processes(gpus, engine_gpus), usable_cores()
    name, virtual = processor()
    (alone,) = rounds_beside(1, alone_s)
    beside = rounds_beside(max(1, min(processes, int(cores))), beside_s)
    found = host_speed(cores, processes, alone, beside, virtual)
    return found.model_copy(update={"processor": name})
