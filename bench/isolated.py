"""Work in a process of its own under a time limit: whatever hangs there ends, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from typing import Any

import torch.multiprocessing as mp

from bench.workbench import UnsupportedError

Ask = Callable[[Any], Any]
"""Sends a message to the other process and returns its answer."""
_JOIN_S = 10.0
"""Seconds in which a killed process must be gone; the driver takes its context down meanwhile."""


@contextlib.contextmanager
def serving(make: Callable[..., Ask], arguments: tuple[Any, ...], limit_s: float) -> Iterator[Ask]:
    """What ``make(*arguments)`` returns in a new process answers the messages that are asked inside.

    ``limit_s`` bounds all of it, from the start of the process. Asking raises UnsupportedError where it is used up,
    where the other process ends, and with the reason where something fails there. The process is killed at the end.
    """
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(make, arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    deadline = time.monotonic() + limit_s

    def ask(message: Any) -> Any:
        try:
            ours.send(message)
            if not ours.poll(max(0.0, deadline - time.monotonic())):
                raise UnsupportedError(f"not done within {limit_s:g} s")
            failed, answer = ours.recv()
        except (EOFError, OSError) as error:
            raise UnsupportedError("the process beside this one ended early") from error
        if failed:
            raise UnsupportedError(answer)
        return answer

    try:
        yield ask
    finally:
        process.kill()
        process.join(_JOIN_S)
        ours.close()


def _serve(make: Callable[..., Ask], arguments: tuple[Any, ...], asked: Connection) -> None:
    """Answer every message with (False, answer), or (True, reason) where something failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer: Ask | None = None
    while True:
        try:
            message = asked.recv()
        except EOFError:
            return
        try:
            answer = answer or make(*arguments)
            asked.send((False, answer(message)))
        except Exception as error:  # handed over as a sentence
            asked.send((True, (str(error) or type(error).__name__).splitlines()[0]))


def _end_with_parent() -> None:
    """A parent that is killed leaves nothing behind, whatever this process is doing."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
