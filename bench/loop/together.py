"""The synchronous loop: generator and trainer in one process, which take turns on all cores."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from bench.loop.engine import Engine, Iteration, Request, settle
from bench.loop.events import EventLog, machine_s
from bench.loop.memory import MemoryPeaks
from bench.loop.policy import copied, hand_over, random_policy, tensors_of
from bench.loop.settings import LoopSettings, Samples
from bench.loop.training import Trainer, rewards_of

Said = Callable[[str], None]


def requests_of(settings: LoopSettings, step: int) -> list[Request]:
    """Samples of a step, numbered through the run."""
    prompts, lengths = settings.prompts_of(step), settings.response_lengths()[step]
    first = step * settings.batch
    return [
        Request(first + number, prompts[number // settings.samples], int(length))
        for number, length in enumerate(lengths)
    ]


def note_iteration(log: EventLog, done: Iteration) -> None:
    """Record an iteration and the samples that it finished."""
    log.add(
        "iteration", done.start_s, done.seconds, cpu_s=round(done.cpu_s, 6),
        decoding=done.decoding, context_tokens=round(done.context_tokens, 2),
        prefill_tokens=done.prefill_tokens, accepted_tokens=sum(done.accepted),
    )  # fmt: skip
    for one in done.finished:
        log.add(
            "sample", done.start_s + done.seconds, 0.0, sample=one.sample, prompt_tokens=len(one.prompt),
            response_tokens=one.response_tokens, iterations=one.iterations,
        )  # fmt: skip


def assembled(settings: LoopSettings, step: int, tokens: dict[int, np.ndarray]) -> Samples:
    """The samples of a step with their rewards, padded to the longest. tokens: by sample."""
    first, lengths = step * settings.batch, settings.response_lengths()[step]
    padded = np.zeros((settings.batch, settings.prompt_tokens + int(lengths.max())), dtype=np.int64)
    for row in range(settings.batch):
        own = tokens.pop(first + row)
        padded[row, : len(own)] = own
    return Samples(padded, settings.prompt_tokens, lengths, rewards_of(padded, settings.prompt_tokens, lengths))


def train_on(trainer: Trainer, samples: Samples, log: EventLog, step: int) -> None:
    """Log-probs and update."""
    before: list[torch.Tensor] = []
    if trainer.settings.policy_logprobs:
        with log.phase("logprob_s", step):
            before = trainer.logprobs(samples)
    with log.phase("train_s", step):
        trainer.update(samples, before)


def run_together(settings: LoopSettings, say: Said) -> EventLog:
    """Run all steps; their events."""
    policy = random_policy(settings.dims, settings.seed, settings.device)
    engine = Engine(policy, settings, settings.capacity)
    trainer = Trainer(copied(policy), settings, settings.capacity)
    engine.capture(range(1, settings.running + 1))
    held, log = tensors_of(policy), EventLog(time.monotonic(), partial(settle, engine.device))
    memory = MemoryPeaks(engine.device)
    all_threads = settings.threads or torch.get_num_threads()
    for step in range(settings.trained_steps):
        start_s, before = time.monotonic(), machine_s()
        own_s = time.process_time()
        with log.phase("prepare_s", step):
            hand_over(trainer.weights, held)
        # One sequence after the other is too little work for several threads to share.
        torch.set_num_threads(1)
        tokens: dict[int, np.ndarray] = {}
        with log.phase("generation_s", step):
            engine.submit(requests_of(settings, step))
            while (done := engine.iterate()) is not None:
                note_iteration(log, done)
                tokens.update((one.sample, engine.tokens_of(one)) for one in done.finished)
        torch.set_num_threads(all_threads)
        peaks = memory.taken("generation")
        with log.phase("data_s", step):
            samples = assembled(settings, step, tokens)
        train_on(trainer, samples, log, step)
        peaks |= memory.taken("training")
        end_s, after, spent_s = time.monotonic(), machine_s(), time.process_time() - own_s
        log.add(
            "step", start_s, end_s - start_s, step=step, reward=round(float(samples.rewards.mean()), 6),
            others_cpu_s=round(max(0.0, after[0] - before[0] - spent_s), 3), steal_s=round(after[1] - before[1], 3),
            **peaks,
        )  # fmt: skip
        say(f"{settings.name}: step {step + 1}/{settings.trained_steps}")
    return log
