"""The lagged loop: generator and trainer as two processes under rules of NeMo-RL's single controller, with a core each,
or on one GPU, between which weights then pass by CUDA IPC handles.

rlsim's style ``nemo_rl_in_order``: with weights of version v the groups of the steps up to v + lag may have started, in
order and at most a batch of them in flight; a step trains on exactly the groups that started for it; running requests
keep their cache over an update, for which the generator stops once its iteration in progress has ended. Lag 0 takes
turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor

from bench import BenchError
from bench.loop.engine import Engine, Iteration, settle
from bench.loop.events import Event, EventLog, machine_s
from bench.loop.memory import MemoryPeaks
from bench.loop.policy import copied, hand_over, random_policy, tensors_of
from bench.loop.settings import LoopSettings
from bench.loop.together import Said, assembled, note_iteration, requests_of, train_on
from bench.loop.training import Trainer

TRAINER_CORE, GENERATOR_CORE = 0, 1
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@contextmanager
def on_one_core(number: int) -> Iterator[None]:
    """One thread on the core of that number (of those allowed), as far as the system can pin; then as before."""
    threads = torch.get_num_threads()
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    torch.set_num_threads(1)
    if allowed:
        os.sched_setaffinity(0, {allowed[number % len(allowed)]})
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if allowed:
            os.sched_setaffinity(0, set(allowed))


def own_core(settings: LoopSettings, number: int) -> AbstractContextManager[None]:
    """A core for a process of a split loop; on a GPU, where the host has many, none in particular."""
    return on_one_core(number) if settings.device == "cpu" else nullcontext()


class _Generator:
    """The generating process: starts groups as it may, iterates, and takes new weights between two iterations."""

    def __init__(self, settings: LoopSettings, weights: list[Tensor], tokens: Tensor, trainer: Connection) -> None:
        self.settings, self.shared, self.tokens, self.trainer = settings, weights, tokens, trainer
        policy = random_policy(settings.dims, settings.seed, settings.device)
        self.engine, self.held = Engine(policy, settings, settings.capacity), tensors_of(policy)
        self.engine.capture(range(1, settings.running + 1))
        self.memory = MemoryPeaks(self.engine.device)
        self.version = self.next_group = self.in_flight = 0
        self.left: dict[int, int] = {}
        self.log = EventLog(0.0)

    def run(self) -> None:
        """Generate until the trainer says stop."""
        self.trainer.send(("ready", 0))
        self.log.clock = self.trainer.recv()
        while True:
            self.start_groups()
            while self.trainer.poll(0):
                if not self.obey(self.trainer.recv()):
                    return
                self.start_groups()
            done = self.engine.iterate()
            if done is not None:
                self.note(done)
                continue
            start_s = time.monotonic()
            self.trainer.poll(None)
            self.log.add("idle", start_s, time.monotonic() - start_s)

    def start_groups(self) -> None:
        """Start the groups that may."""
        settings = self.settings
        released = min(self.version + 1 + settings.lag, settings.generated_steps) * settings.prompts
        while self.next_group < released and self.in_flight < settings.prompts:
            step, number = divmod(self.next_group, settings.prompts)
            own = requests_of(settings, step)[number * settings.samples : (number + 1) * settings.samples]
            self.log.add("start", time.monotonic(), 0.0, group=self.next_group, version=self.version)
            self.engine.submit(own)
            self.left[self.next_group] = settings.samples
            self.next_group += 1
            self.in_flight += 1

    def note(self, done: Iteration) -> None:
        """Record an iteration, and hand over the groups that it completed."""
        note_iteration(self.log, done)
        for one in done.finished:
            own, group = self.engine.tokens_of(one), one.sample // self.settings.samples
            self.tokens[one.sample, : len(own)] = torch.from_numpy(own)
            self.left[group] -= 1
            if not self.left[group]:
                self.in_flight -= 1
                self.trainer.send(("group", group))

    def obey(self, word: str) -> bool:
        """Take the weights that the trainer has published, or stop."""
        if word == "stop":
            self.log.add("memory", time.monotonic(), 0.0, **self.memory.taken("generation"))
            self.trainer.send(("events", self.log.events))
            return False
        start_s = time.monotonic()
        hand_over(self.shared, self.held)
        settle(self.engine.device)
        self.version += 1
        self.log.add("publish", start_s, time.monotonic() - start_s, version=self.version)
        self.trainer.send(("published", self.version))
        return True


def _generate(settings: LoopSettings, weights: list[Tensor], tokens: Tensor, trainer: Connection) -> None:
    with own_core(settings, GENERATOR_CORE):
        _Generator(settings, weights, tokens, trainer).run()


class _Mailbox:
    """What the generator says: groups that are done are kept, anything else is waited for."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.done = connection, set[int]()

    def until(self, word: str) -> object:
        """Take messages up to one that begins with ``word``; what it says. BenchError where the process has ended."""
        while True:
            try:
                kind, content = self.connection.recv()
            except (EOFError, OSError) as error:
                raise BenchError("the generating process ended early") from error
            if kind == "group":
                self.done.add(content)
            if kind == word:
                return content

    def await_groups(self, groups: range) -> None:
        """Wait for groups."""
        while not self.done.issuperset(groups):
            self.until("group")


def run_apart(settings: LoopSettings, say: Said) -> EventLog:
    """Run all steps; the events of both processes in the order of their times."""
    policy = random_policy(settings.dims, settings.seed, settings.device)
    # On a GPU this is memory that the other process opens by its handle.
    shared = [tensor.clone().share_memory_() for tensor in tensors_of(policy)]
    rows = settings.generated_steps * settings.batch
    tokens = torch.zeros(rows, settings.capacity, dtype=torch.long).share_memory_()
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_generate, args=(settings, shared, tokens, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        with own_core(settings, TRAINER_CORE):
            trainer, mailbox = Trainer(copied(policy), settings, settings.capacity), _Mailbox(ours)
            del policy
            mailbox.until("ready")
            log, memory = EventLog(time.monotonic(), partial(settle, trainer.device)), MemoryPeaks(trainer.device)
            ours.send(log.clock)
            for step in range(settings.trained_steps):
                _step(step, trainer, shared, tokens, mailbox, log, process.pid or 0, memory)
                say(f"{settings.name}: step {step + 1}/{settings.trained_steps}")
            ours.send("stop")
            theirs_events: list[Event] = mailbox.until("events")  # type: ignore[assignment]
    finally:
        process.kill()
        process.join()
        ours.close()
    log.events = sorted([*log.events, *theirs_events], key=lambda event: float(event["at_s"]))
    return log


def _step(
    step: int, trainer: Trainer, shared: list[Tensor], tokens: Tensor, mailbox: _Mailbox, log: EventLog, beside: int,
    memory: MemoryPeaks,
) -> None:  # fmt: skip
    """Wait for the groups of a step, train on them, publish. beside: number of the generating process."""
    settings = trainer.settings
    start_s, before, own_s = time.monotonic(), machine_s(), time.process_time() + _cpu_s(beside)
    with log.phase("exposed_generation_s", step):
        mailbox.await_groups(range(step * settings.prompts, (step + 1) * settings.prompts))
    with log.phase("data_s", step):
        lengths, first = settings.response_lengths()[step], step * settings.batch
        held: dict[int, np.ndarray] = {
            first + row: tokens[first + row, : settings.prompt_tokens + int(length)].numpy()
            for row, length in enumerate(lengths)
        }
        samples = assembled(settings, step, held)
    train_on(trainer, samples, log, step)
    with log.phase("refit_s", step):
        hand_over(trainer.weights, shared)
        # The other process reads what this one's device has written.
        settle(trainer.device)
        mailbox.connection.send("publish")
        mailbox.until("published")
    end_s, after, spent_s = time.monotonic(), machine_s(), time.process_time() + _cpu_s(beside) - own_s
    log.add(
        "step", start_s, end_s - start_s, step=step, reward=round(float(samples.rewards.mean()), 6),
        others_cpu_s=round(max(0.0, after[0] - before[0] - spent_s), 3), steal_s=round(after[1] - before[1], 3),
        **memory.taken("training"),
    )  # fmt: skip


def _cpu_s(process: int) -> float:
    """CPU seconds of a process so far; 0 where the system does not tell."""
    try:
        told = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(told[11]) + int(told[12])) * _TICK_S
    except (OSError, ValueError, IndexError):
        return 0.0
