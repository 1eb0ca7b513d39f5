"""Where tasks run: in this process, on local cores or on a Dask cluster, with the same results."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

from rlsim.errors import InputError
from rlsim.files.progress import ProgressLine
from rlsim.tables.fingerprint import tables_held

IN_FLIGHT_PER_JOB = 2
"""Tasks handed out per process: one to work on and one to begin without waiting."""
WORTH_S = 6.0
"""More processes are started where what is left would take one this long: a second one may need a second to start,
fills tables of its own, and halves what is left at best (1,000 cells on two cores: 42 % of wall time for 10 % more
CPU)."""
MANY_CORES = 4
"""From here on, tasks of unknown number (a plan's) go to processes at once: on two, a plan takes a sixth less time for
a third more CPU."""
WATCH_S, WORKERLESS_S = 5.0, 60.0
"""How often a cluster that finishes nothing is looked at, and how long one without workers is waited for: batch systems
start a worker anew within a minute."""
KEPT = "what is finished is kept in --out, and the same command goes on from there"
ORPHAN_CHECK_S = 1.0
"""How often a worker looks whether its parent still lives."""


def local_jobs(jobs: int | str | None) -> int:
    """Processes to use; all cores that this process may run on where ``jobs`` does not say. InputError below 1."""
    if jobs is None or isinstance(jobs, str):
        # Under taskset or a batch scheduler fewer cores may be allowed than there are; macOS has no such call.
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}")
    return jobs


Runner = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[tuple[int, Any]]]
"""run(function, tasks) yields (index, function(task)) as tasks finish, in any order.

``function`` must be importable and its result a function of the task alone. Local runners take tasks one by one as
there is room, so that a generator may let later tasks depend on earlier results.
"""


def in_order(run: Runner, function: Callable[[Any], Any], tasks: Sequence[Any], progress: ProgressLine) -> list[Any]:
    """Results of all ``tasks`` in their order; each that finishes advances ``progress``."""
    out = {}
    for index, result in run(function, tasks):
        out[index] = result
        progress.advance(1)
    return [out[index] for index in range(len(tasks))]


@contextmanager
def executor(jobs: int | str | None = 1, most: int | None = None) -> Iterator[Runner]:
    """A runner in this process, on local processes or on a Dask cluster, with the same results.

    jobs: local processes (None: all cores, as soon as they pay), or the address of a running Dask scheduler,
    tcp://host:8786. most: number of tasks to come, where it is known; fewer tasks take fewer processes than jobs.
    Raises InputError where processes are ended from outside and the tasks cannot be.
    """
    if isinstance(jobs, str):
        with _on_dask(jobs) as run:
            yield run
        return
    count = local_jobs(jobs) if most is None else min(local_jobs(jobs), most)
    if count <= 1 or (jobs is None and most is None and count < MANY_CORES):
        yield _in_this_process
    elif jobs is None and most is not None:
        yield partial(_once_it_pays, count, most)
    else:
        yield partial(_on_processes, count)


def _in_this_process(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    with tables_held():
        yield from ((index, function(task)) for index, task in enumerate(tasks))


def _once_it_pays(
    count: int, most: int, function: Callable[[Any], Any], tasks: Iterable[Any]
) -> Iterator[tuple[int, Any]]:
    """In this process, until what is left is worth others."""
    queue, started = enumerate(tasks), time.perf_counter()
    for index, task in queue:
        yield _numbered(function, index, task)
        done = index + 1
        if (most - done) * (time.perf_counter() - started) / done > WORTH_S:
            for place, result in _on_processes(count, function, (rest for _, rest in queue)):
                yield done + place, result


def _on_processes(count: int, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """On processes of loky, which do not import the caller's script: one without a main guard works."""
    from loky import ProcessPoolExecutor

    pool = ProcessPoolExecutor(count, initializer=_left_to_parent, initargs=(os.getpid(),))
    done = False
    try:
        yield from _on_pool(pool, count, function, tasks)
        done = True
    except BrokenExecutor as error:
        raise InputError(
            f"a process of --jobs was ended from outside, as a system does that is short of memory; {KEPT}, with fewer "
            "--jobs where it was that"
        ) from error
    finally:
        pool.shutdown(wait=done, kill_workers=not done)  # an interrupted one does not wait for what runs


def _on_pool(
    pool: Executor,
    width: int,
    function: Callable[[Any], Any],
    tasks: Iterable[Any],
    watch: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Any]]:
    """On any executor of concurrent.futures; ``width`` tasks run at once, and as many wait for them. watch: called
    every WATCH_S while nothing finishes; raises where nothing can."""
    queue, running = enumerate(tasks), set[Future[tuple[int, Any]]]()
    while True:
        # No more tasks than there is room for: later ones of a search depend on the results of these (Runner).
        room = width * IN_FLIGHT_PER_JOB - len(running)
        running |= {pool.submit(_numbered, function, *one) for one in itertools.islice(queue, room)}
        if not running:
            return
        finished, running = wait(running, WATCH_S, FIRST_COMPLETED)
        if not finished:
            watch()
        yield from (one.result() for one in finished)


class _Workers:
    """Workers of a Dask cluster: one that has none for WORKERLESS_S will not answer."""

    def __init__(self, address: str, client: Any) -> None:
        self._address, self._client, self._seen_s = address, client, time.monotonic()

    def check(self) -> None:
        """Raises InputError where no worker has been there for too long, or the scheduler is gone."""
        try:
            there = bool(self._client.scheduler_info()["workers"])
        except (OSError, RuntimeError, ValueError):
            there = False
        if there:
            self._seen_s = time.monotonic()
        elif time.monotonic() - self._seen_s > WORKERLESS_S:
            raise InputError(f"--dask {self._address}: no worker has been there for {WORKERLESS_S:.0f} s; {KEPT}")


def _numbered(function: Callable[[Any], Any], index: int, task: Any) -> tuple[int, Any]:
    with tables_held():
        return index, function(task)


def _left_to_parent(parent: int) -> None:
    """Let this worker ignore what interrupts a terminal, and end when its parent does, however that ends."""
    # Ctrl-C reaches the whole group of processes: the parent ends its workers, which would each print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK_S)
        os._exit(1)  # from a thread nothing else ends a process whose main thread waits for a task

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _on_dask(address: str) -> Iterator[Runner]:
    with _dask_client(address) as client:
        from dask.distributed import KilledWorker

        # A scheduler whose workers are still to come counts 0 threads.
        width = max(1, sum(client.nthreads().values()))
        try:
            yield partial(_on_pool, client.get_executor(), width, watch=_Workers(address, client).check)
        except KilledWorker as error:  # of one task, as often as Dask allows
            raise InputError(f"--dask {address}: every worker that took one of the tasks died; {KEPT}") from error
        except CancelledError as error:
            raise InputError(f"--dask {address}: the scheduler is gone; {KEPT}") from error


def _dask_client(address: str) -> Any:
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise InputError("--dask needs the extra 'dask': pip install 'rlsim[dask]'") from error
    try:
        # Not as default, or later calls of Dask in the caller's own program would go to this cluster.
        return Client(address, timeout="10s", set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise InputError(f"--dask {address}: no scheduler answers there ({error})") from error
