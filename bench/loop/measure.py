"""What the loop's parts take on this machine: iterations, micro-batches, optimizer, hand-over, launches, products.

Every part runs the loop's own code. Three settings of the machine: ``shared`` (one process), ``alone`` (one core, the
other one idle) and ``beside`` (one core, the other half of the loop at work on the other one). Rounds over all points
take turns, so that a disturbance meets each of them once and its median drops it. Every part counts at one
pace of the machine (``bench.loop.pace``). On a GPU, which both halves of a split loop share, alone is the same as
shared, and a device of steady clocks needs no pace.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor

from bench import BenchError
from bench.loop.apart import GENERATOR_CORE, TRAINER_CORE, own_core
from bench.loop.engine import Engine, Request, settle
from bench.loop.events import EventLog
from bench.loop.pace import Pace, Seconds
from bench.loop.policy import GENERATION_TYPE, copied, hand_over, random_policy, tensors_of
from bench.loop.settings import MOST_DRAFTED, LoopSettings, Samples
from bench.loop.together import note_iteration, requests_of
from bench.loop.training import Trainer, rewards_of
from bench.metadata import describe

SCHEMA = "rlsim.loop_measurements/1"
SETTINGS = ("shared", "alone", "beside")
Say = Callable[[str], None]
_READY_S = 300.0
_CPU = torch.device("cpu")
_REPEATS = 20
_COPIED, _PRODUCT_ROWS = {"cpu": 1 << 24, "cuda": 1 << 28}, {"cpu": (1, 16, 1024), "cuda": (1, 64, 16384)}
"""FP32 values of a copy, and rows of products, by device."""


@dataclass(frozen=True)
class Plan:
    """Points to measure. drafts: (drafter, k) of iterations in a shared loop; split: the same on one core."""

    sequences: tuple[int, ...] = (1, 2, 4, 8, 16)
    contexts: tuple[int, ...] = (48, 144)
    drafts: tuple[tuple[str, int], ...] = (
        ("none", 0), ("model", 1), ("model", 3), ("model", 7), ("ngram", 1), ("ngram", 3), ("ngram", 7),
    )  # fmt: skip
    split: tuple[tuple[str, int], ...] = (("none", 0), ("model", 3))
    prompts: tuple[int, ...] = (1, 2, 4, 8, 16)
    micro_batches: tuple[tuple[int, int], ...] = ((2, 96), (2, 200), (4, 96), (4, 200), (8, 96), (8, 200))
    iterations: int = 8
    rounds: int = 3
    acceptance_steps: int = 3


GPU = Plan(
    (1, 2, 4, 8, 16, 24, 32), (160, 480),
    (("none", 0), ("model", 1), ("model", 3), ("model", 5), ("model", 7), ("ngram", 3)), (("none", 0), ("model", 3)),
    (1, 2, 4, 8, 16, 32), ((4, 160), (4, 384), (4, 576), (8, 160), (8, 384), (8, 576)), 12, 2, 2,
)  # fmt: skip
"""For settings.ON_GPU."""
QUICK = Plan((1, 4), (16, 40), (("none", 0), ("model", 2), ("ngram", 2)), (("none", 0),), (1, 4), ((2, 24), (2, 48)),
             3, 1, 1)  # fmt: skip
"""For tests."""


def measure_loop(base: LoopSettings, plan: Plan, say: Say) -> dict[str, Any]:
    """Measure all parts for loops with the model and the prompts of ``base``; a JSON object (docs/contracts.md)."""
    about, on_gpu = describe(torch.device(base.device), "loop"), base.device == "cuda"
    threads, pace = (1 if on_gpu else _threads(base, plan, say)), Pace(base)
    stacks = {"shared": _shared(base, plan, threads, pace, say)}
    for setting in SETTINGS[1:]:
        beside = setting == "beside"
        # A process that has the GPU for itself is the shared loop's, whatever its weights pass through.
        stacks[setting] = stacks["shared"] if on_gpu and not beside else _split(base, plan, beside, pace, say)
    return {
        "schema": SCHEMA, "model": base.model, "prompt_tokens": base.prompt_tokens, "threads": threads,
        "about": vars(about), "pace_s": pace.reference_s,
        "host": _host(base), "acceptance": _acceptance(base, plan, say), "stacks": stacks,
    }  # fmt: skip


def _threads(base: LoopSettings, plan: Plan, say: Say) -> int:
    """Threads with which a shared loop trains fastest; generation has one, which its small kernels keep busy."""
    trainer, found = _trainer(base, plan), dict[int, float]()
    before = torch.get_num_threads()
    for threads in sorted({1, os.cpu_count() or 1}) * 2:
        torch.set_num_threads(threads)
        start_s = time.monotonic()
        _train(trainer, *plan.micro_batches[-1])
        seconds = time.monotonic() - start_s
        found[threads] = min(seconds, found.get(threads, seconds))
        say(f"threads {threads}")
    torch.set_num_threads(before)
    # More threads count where they are a tenth faster: less than that a shared machine takes back at any moment.
    return min(found, key=lambda threads: found[threads] * (1.0 if threads == 1 else 1.1))


def _shared(base: LoopSettings, plan: Plan, threads: int, pace: Pace, say: Say) -> dict[str, Any]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        generated = pace.evened(lambda: _iterations(base, plan, plan.drafts, say))
        torch.set_num_threads(threads)
        return _stack(*generated, *pace.evened(lambda: (_passes(base, plan, say),)))
    finally:
        torch.set_num_threads(before)


def _split(base: LoopSettings, plan: Plan, beside: bool, pace: Pace, say: Say) -> dict[str, Any]:
    """Each half on its core, with the other half at work on the other core or not."""

    def generated() -> tuple[Seconds, ...]:
        with own_core(base, GENERATOR_CORE), _busy(base, plan, "trainer" if beside else ""):
            return _iterations(base, plan, plan.split, say)

    def trained() -> tuple[Seconds, ...]:
        with own_core(base, TRAINER_CORE), _busy(base, plan, "generator" if beside else ""):
            return (_passes(base, plan, say),)

    return _stack(*pace.evened(generated), *pace.evened(trained))


def _stack(iterations: Seconds, prefills: Seconds, trained: Seconds) -> dict[str, Any]:
    every = [seconds for part in (iterations, prefills, trained) for seconds in part.values()]
    spread = [max(one) / min(one) - 1.0 for one in every]
    names = {"logprob": [], "update": [], "optimizer": [], "hand_over": [], "data": []}  # type: dict[str, list[Any]]
    for (kind, *sizes), seconds in trained.items():
        names[kind].append([*sizes, _middle(seconds)])
    return {
        "iterations": [[*point, _middle(seconds)] for point, seconds in iterations.items()],
        "prefill": [[*point, _middle(seconds)] for point, seconds in prefills.items()],
        **names, "spread": round(statistics.median(spread), 4),
    }  # fmt: skip


def _middle(seconds: Sequence[float]) -> float:
    return float(f"{statistics.median(seconds):.5g}")


def _iterations(base: LoopSettings, plan: Plan, drafts: Sequence[tuple[str, int]], say: Say) -> tuple[Seconds, Seconds]:
    """Seconds of iterations by (drafter, k, sequences, context), and of prefills by prompt tokens."""
    rows, longest = max(plan.sequences), int(max(plan.contexts) * 1.5)
    growth = (MOST_DRAFTED + 1) * (plan.iterations + 2)
    decoded, prefilled = Seconds(), Seconds()
    engines = [_engine(base, drafter, k, rows, longest + growth) for drafter, k in drafts]
    for engine in engines:
        engine.capture(plan.sequences)
    for number in range(plan.rounds):
        for (drafter, k), engine in zip(drafts, engines, strict=True):
            for n in plan.sequences:
                for context in plan.contexts:
                    seconds = _decoded(engine, n, context, plan.iterations)
                    decoded.setdefault((drafter, k, n, context), []).append(seconds)
        for count in (one for one in plan.prompts if one <= rows):
            prefilled.setdefault((count * base.prompt_tokens,), []).append(_prefilled(engines[0], count))
        say(f"iterations, round {number + 1} of {plan.rounds}")
    return decoded, prefilled


def _engine(base: LoopSettings, drafter: str, k: int, rows: int, capacity: int) -> Engine:
    changed: dict[str, Any] = {"drafter": drafter, "draft_length": k, "running": rows, "budget_tokens": 1 << 20}
    settings = replace(base, placement="shared", lag=0, lengths=(), **changed)
    return Engine(random_policy(base.dims, base.seed, base.device), settings, capacity)


def _decoded(engine: Engine, n: int, context: int, iterations: int) -> float:
    """Seconds of an iteration of ``n`` sequences whose lengths lie evenly around a mean context."""
    rng = np.random.default_rng(n * 1000 + context)
    spread = np.linspace(0.6, 1.4, n) if n > 1 else np.ones(1)
    lengths = np.rint(context * spread).astype(np.int64)
    engine.lengths[:n] = torch.from_numpy(lengths).to(engine.device)
    engine.ends.fill_(1 << 30)
    engine.history.copy_(torch.from_numpy(rng.integers(0, engine.cached.model.dims.vocabulary, engine.history.shape)))
    one = np.zeros(1, dtype=np.int64)
    engine.running = [Request(row, one, 1 << 30, emitted=int(length)) for row, length in enumerate(lengths)]
    engine.waiting.clear()
    log, found = EventLog(0.0), []
    for _ in range(iterations + 1):
        start_s = _now_s(engine.device)
        done = engine.iterate()
        assert done is not None
        note_iteration(log, done)
        found.append(_now_s(engine.device) - start_s)
    engine.running = []
    # The slowest of them, and the first, which finds its data cold, are left out; where two processes share a GPU, an
    # iteration in which it turned to the other one is no disturbance.
    counted = iterations if engine.on_gpu else max(1, round(0.9 * iterations))
    return float(np.mean(sorted(found[1:])[:counted]))


def _prefilled(engine: Engine, count: int) -> float:
    prompt, found = engine.settings.prompts_of(0)[0], []
    for _ in range(3):
        engine.running = []
        engine.waiting.clear()
        engine.submit([Request(row, prompt, 1 << 30) for row in range(count)])
        found.append(_timed(engine.iterate, engine.device))
    engine.running = []
    return statistics.median(found)


def _trainer(base: LoopSettings, plan: Plan) -> Trainer:
    longest = max(length for _, length in plan.micro_batches)
    return Trainer(copied(random_policy(base.dims, base.seed, base.device)), base, longest)


def _train(trainer: Trainer, samples: int, length: int) -> None:
    device = trainer.device
    tokens = torch.randint(trainer.policy.dims.vocabulary, (samples, length), device=device)
    trainer.backward(tokens, None, torch.ones(samples, device=device), torch.ones(samples, length - 1, device=device))


def _passes(base: LoopSettings, plan: Plan, say: Say) -> Seconds:
    """Seconds of micro-batches by (kind, samples, tokens of each), of an optimizer step, of a hand-over of weights and
    of the data of one sample."""
    trainer, found = _trainer(base, plan), Seconds()
    device = trainer.device
    target = tensors_of(random_policy(base.dims, base.seed, base.device))
    _train(trainer, *plan.micro_batches[0])
    for number in range(plan.rounds):
        for samples, length in plan.micro_batches:
            tokens = torch.randint(base.dims.vocabulary, (samples, length), device=device)
            with torch.no_grad():
                seconds = _repeated(lambda tokens=tokens: trainer.logprobs_of(tokens), device)  # type: ignore[misc]
            found.setdefault(("logprob", samples, length), []).append(seconds)
            seconds = _repeated(lambda point=(samples, length): _train(trainer, *point), device)  # type: ignore[misc]
            found.setdefault(("update", samples, length), []).append(seconds)
        found.setdefault(("optimizer",), []).append(_timed(lambda: trainer.step(1.0), device))
        _train(trainer, *plan.micro_batches[0])
        found.setdefault(("hand_over",), []).append(_timed(lambda: hand_over(trainer.weights, target), device))
        found.setdefault(("data",), []).append(_data_s(base))
        say(f"micro-batches, round {number + 1} of {plan.rounds}")
    return found


def _data_s(base: LoopSettings) -> float:
    """Seconds to put one sample into a batch and reward it."""
    tokens, lengths = np.zeros((64, 128), dtype=np.int64), np.full(64, 100)

    def work() -> None:
        Samples(np.concatenate([row[None] for row in tokens]), 24, lengths, rewards_of(tokens, 24, lengths))

    return _timed(work, _CPU) / len(tokens)


def _now_s(device: torch.device) -> float:
    """Now, when the device is done; on a CPU the CPU time of this process where it has one thread, which is never idle
    then: what others take does not count."""
    settle(device)
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time() if alone else time.monotonic()


def _timed(call: Callable[[], object], device: torch.device) -> float:
    start_s = _now_s(device)
    call()
    return _now_s(device) - start_s


def _repeated(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call after one of the same sizes, whose memory it finds there as in the loop."""
    call()
    return _timed(call, device)


def _host(base: LoopSettings) -> dict[str, float]:
    """Seconds of a smallest kernel, bytes per second of a copy in memory, FLOP per second of the best product."""
    device, dtype, size = torch.device(base.device), GENERATION_TYPE[base.device], _COPIED[base.device]
    tiny, source, target = (torch.zeros(elements, device=device) for elements in (1, size, size))
    launch = min(_timed(lambda: [tiny.add_(1.0) for _ in range(1000)], device) for _ in range(5)) / 1000
    copied_s = min(_timed(lambda: target.copy_(source), device) for _ in range(5))
    products = {}
    for rows in _PRODUCT_ROWS[base.device]:
        for n, k in ((base.dims.qkv_width, base.dims.hidden), (2 * base.dims.width, base.dims.hidden)):
            left, right = (torch.randn(m, k, device=device, dtype=dtype) for m in (rows, n))
            work = partial(_products, left, right)
            seconds = min(_timed(work, device) for _ in range(5)) / _REPEATS
            products[f"{rows}x{n}x{k}"] = 2.0 * rows * n * k / seconds
    return {
        "launch_s": launch, "copy_bytes_per_s": 8.0 * size / copied_s, "best_flops": max(products.values()),
        **{f"product {name}": rate for name, rate in products.items()},
    }  # fmt: skip


def _products(left: Tensor, right: Tensor) -> None:
    for _ in range(_REPEATS):
        torch.mm(left, right.T)


def _acceptance(base: LoopSettings, plan: Plan, say: Say) -> dict[str, list[float]]:
    """Share of verifications in which each position of a draft was accepted, by drafter: a rollout of its own seed."""
    found = {}
    for drafter in dict.fromkeys(name for name, k in plan.drafts if k):
        longest = max(k for name, k in plan.drafts if name == drafter)
        drafting: dict[str, Any] = {"drafter": drafter, "draft_length": longest, "steps": plan.acceptance_steps}
        settings = replace(base, warmup_steps=0, lag=0, placement="shared", lengths=(), **drafting)
        engine = Engine(random_policy(base.dims, base.seed, base.device), settings, settings.capacity)
        engine.capture(range(1, settings.running + 1))
        engine.seed(base.seed + 1000)
        for step in range(plan.acceptance_steps):
            engine.submit(requests_of(settings, step))
        counts: list[int] = []
        while (done := engine.iterate()) is not None:
            counts += done.accepted
        found[drafter] = [round(float(np.mean(np.array(counts) > place + 1)), 5) for place in range(longest)]
        say(f"acceptance, {drafter}")
    return found


@contextmanager
def _busy(base: LoopSettings, plan: Plan, half: str) -> Iterator[None]:
    """The other half of the loop at work in a process of its own; nothing for an empty name."""
    if not half:
        yield
        return
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(base, plan, half, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        try:
            ready = ours.poll(_READY_S) and ours.recv()
        except EOFError:
            ready = False
        if not ready:
            raise BenchError("the process of the loop's other half did not start")
        yield
    finally:
        process.kill()
        process.join()
        ours.close()


def _work(base: LoopSettings, plan: Plan, half: str, told: Any) -> None:
    with own_core(base, TRAINER_CORE if half == "trainer" else GENERATOR_CORE):
        trainer, rows = _trainer(base, plan), max(plan.sequences)
        longest = int(max(plan.contexts) * 1.5) + (MOST_DRAFTED + 1) * 40
        engine = _engine(base, "none", 0, rows, longest)
        engine.capture([rows])
        told.send("ready")
        while os.getppid() != 1:
            if half == "trainer":
                _train(trainer, *plan.micro_batches[-1])
                trainer.step(1.0)
            else:
                _decoded(engine, rows, max(plan.contexts), 30)
