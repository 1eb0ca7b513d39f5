"""A trainer that begins on finished samples while others are still generated (StreamRL, arXiv 2504.15930; AsyncFlow,
verl-recipe async_flow@48ea0a79): the same batch and as many updates, nothing stale.

Log-probs and gradients take their seconds sample by sample, in proportion to tokens, in the order in which samples have
their rewards. With f_i the time of the i-th of them and R_i the work from it on, the last one is done at

    max over i of (f_i + R_i).

Where the reference policy has GPUs of its own, they take samples first, as they come: with w_i the seconds of the i-th
there, f_i becomes max over j <= i of (f_j + w_j + ... + w_i).

What an update does once (gradient exchange, optimizer, synchronisation) follows the last sample of its global batch;
swaps of weights, further epochs and data handling come behind the last sample of the step.
"""

import math

import numpy as np
from msgspec import Struct

from rlsim.costs.interface import StepCost
from rlsim.schema.trainer import Trainer
from rlsim.units import FloatArray

PER_UPDATE = ("gradient exchange", "optimizer", "step synchronisation")
"""Parts of the update that it takes once, however many samples it has; a value model's own lie within its update."""
PER_STEP = ("reference swap", "value model swap")
"""Parts of log-probs and update that a step takes once."""


class Streamed(Struct, frozen=True):
    """What streaming makes of a step's waiting, in seconds.

    exposed_s: the trainer waits for samples. overlapped_s: of its work, before the sample that it waited for last; the
    step is as much shorter than that sample's time and all of the trainer's work.
    """

    exposed_s: float
    overlapped_s: float


def streamed(finish_s: FloatArray, total_tokens: FloatArray, cost: StepCost, trainer: Trainer) -> Streamed:
    """How a trainer works through samples that have their rewards at ``finish_s``, from the start of generation.

    total_tokens: of each of these, prompt and response. Ties in order.
    """
    order, samples = np.argsort(finish_s, kind="stable"), len(finish_s)
    tokens = total_tokens[order]
    passed = np.cumsum(cost.reference_s * tokens / tokens.sum())
    ready_s = finish_s[order]
    if cost.reference_s:
        # The formula above in one pass: w is taken off each time and its sum added again.
        ready_s = passed + np.maximum.accumulate(ready_s - np.concatenate(([0.0], passed[:-1])))
    once = _seconds(cost, PER_UPDATE) / trainer.epochs
    shared = cost.train.seconds - _seconds(cost, PER_UPDATE)
    first_epoch_s = cost.logprob.seconds + shared / trainer.epochs - _seconds(cost, PER_STEP)
    work = max(0.0, first_epoch_s) * tokens / tokens.sum()
    updates = max(1, math.ceil(samples / (trainer.global_batch_samples or samples)))
    # Rounded up as batches are, so that the last update has what is left.
    last = np.minimum(np.arange(1, updates + 1) * -(-samples // updates), samples) - 1
    np.add.at(work, last, once / updates)
    left = np.cumsum(work[::-1])[::-1]
    ends = ready_s + left
    critical = int(np.argmax(ends))
    waited = min(float(ready_s[-1]), float(ends[critical] - left[0]))
    return Streamed(waited, float(left[0] - left[critical]))


def _seconds(cost: StepCost, names: tuple[str, ...]) -> float:
    parts = (*cost.logprob.parts, *cost.train.parts)
    return sum(part.seconds for part in parts if part.name in names)
