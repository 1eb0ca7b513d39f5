"""The executor seam: the same tasks in this process, on local cores or on a Dask cluster, with the same results."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from rlsim.errors import InputError

IN_FLIGHT_PER_JOB = 2
"""Tasks handed out per process: one to work on and one to begin without waiting."""


def local_jobs(jobs: int | None) -> int:
    """Processes to use; None: all cores that this process may run on. Raises InputError below 1."""
    if jobs is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}")
    return jobs


Runner = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[tuple[int, Any]]]
"""run(function, tasks) yields (index, function(task)) as tasks finish, in any order.

``function`` must be importable and its result a function of the task alone. Local runners take tasks one by one as
there is room, so that a generator may let later tasks depend on earlier results.
"""


@contextmanager
def executor(jobs: int | None = 1, dask: str | None = None, most: int | None = None) -> Iterator[Runner]:
    """A runner in this process, on local processes or on a Dask cluster, with the same results.

    jobs: local processes (None: all cores). dask: address of a running scheduler, tcp://host:8786, in place of local
    processes. most: number of tasks to come, where it is known; fewer processes than jobs suffice for fewer tasks.
    """
    if dask is not None:
        client = _dask_client(dask)
        try:
            yield lambda function, tasks: _on_dask(client, function, tasks)
        finally:
            client.close()
        return
    count = min(local_jobs(jobs), most if most is not None else local_jobs(jobs))
    if count <= 1:
        yield _here
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent)
    try:
        yield lambda function, tasks: _on_processes(pool, count, function, tasks)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _here(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    for index, task in enumerate(tasks):
        yield index, function(task)


def _on_processes(
    pool: ProcessPoolExecutor, count: int, function: Callable[[Any], Any], tasks: Iterable[Any]
) -> Iterator[tuple[int, Any]]:
    running: dict[Future[Any], int] = {}
    queue = enumerate(tasks)
    while True:
        while len(running) < count * IN_FLIGHT_PER_JOB and (item := next(queue, None)) is not None:
            running[pool.submit(function, item[1])] = item[0]
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda f: running[f]):
            yield running.pop(future), future.result()


def _end_with_parent() -> None:
    """Let this worker end when its parent does, however that ends."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_dask(client: Any, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    from dask.distributed import as_completed

    finished = as_completed(loop=client.loop)  # type: ignore[no-untyped-call]
    room = IN_FLIGHT_PER_JOB * max(1, sum(client.nthreads().values()))
    place: dict[Any, int] = {}
    queue = enumerate(tasks)

    def hand_out() -> None:
        while len(place) < room and (item := next(queue, None)) is not None:
            future = client.submit(function, item[1], pure=False)
            place[future.key] = item[0]
            finished.add(future)  # type: ignore[no-untyped-call]

    hand_out()
    while place:
        future = next(finished)
        yield place.pop(future.key), future.result()
        hand_out()


def _dask_client(address: str) -> Any:
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise InputError("--dask needs the extra 'dask': pip install 'rlsim[dask]'") from error
    try:
        return Client(address, timeout="10s", set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise InputError(f"--dask {address}: no scheduler answers there ({error})") from error
