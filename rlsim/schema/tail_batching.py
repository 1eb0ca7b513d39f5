"""Tail batching: short rounds race for a step's batch, and long rounds run what they put off."""

from __future__ import annotations

import math

from pydantic import Field

from rlsim.schema.base import Strict

CYCLE_ROUNDS = 24
"""Rounds that a cycle may have beyond its first long one."""


class TailBatching(Strict):
    """Tail batching with over-sampling (RollPacker, arXiv 2509.21009) in a synchronous loop.

    A short round starts more prompts and samples than a step trains on and ends when as many prompts as it needs have
    enough finished samples; what is not done is aborted. Prompts that were not complete are put off; once they fill a
    step, a long round runs them anew from their prompts to the last sample, without a race.
    """

    prompts_factor: float = Field(1.25, ge=1, le=16)
    """Prompts that a short round starts, over prompts_per_step; rounded up. 1: none is put off."""
    samples_factor: float = Field(1.25, ge=1, le=16)
    """Samples that it starts for each prompt, over generations_per_prompt; rounded up. The first of them to finish are
    trained on."""

    @property
    def active(self) -> bool:
        """Whether any round races."""
        return self.prompts_factor > 1 or self.samples_factor > 1


def rounded_up(count: int, factor: float) -> int:
    """``factor`` times as many, rounded up; what rounding of the factor adds does not count."""
    return math.ceil(count * factor - 1e-9)


def rounds_per_cycle(prompts: int, put_off: int) -> int:
    """Rounds after which as many prompts wait as at the start.

    A short round puts ``put_off`` prompts off; the next round is a long one, of ``prompts``, as soon as so many wait.
    Where that takes more than CYCLE_ROUNDS: the rounds after which fewest wait, those of one long round at least.
    """
    if not put_off:
        return 1
    waiting, rounds, best = 0, 0, (prompts, 0)
    while waiting or not rounds:
        short = -(-(prompts - waiting) // put_off)
        long, waiting = divmod(waiting + short * put_off, prompts)
        rounds += short + long
        if best[1] and rounds > CYCLE_ROUNDS:
            break
        best = min(best, (waiting, rounds))
    return best[1]
