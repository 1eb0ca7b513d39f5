"""What an answer assumes of acceptance and of draft lengths, in sentences; each names the key that changes it."""

from __future__ import annotations

import numpy as np

from rlsim.costs.engine.iteration import PolicyChoice
from rlsim.schema.acceptance import Sampling
from rlsim.schema.scenario import Scenario
from rlsim.workload.acceptance_steps import acceptance_at, sampling_move

SHOWN_STRETCHES = 6
"""Batches told of a policy; further ones are left out."""


def drafting_assumptions(scenario: Scenario, choice: PolicyChoice | None) -> list[str]:
    """Sentences on how acceptance varies and on what a policy drafts; [] where every draft is like the others."""
    speculation, own = scenario.speculation, []
    if speculation.variation is not None:
        given = speculation.variation
        own.append(
            f"Acceptance differs by {given.prompt_spread:g} between prompts, by {given.sample_spread:g} between their "
            f"samples and by {given.trend_per_1k_tokens:g} per 1,000 tokens (logit; stated), whatever the lengths; the "
            "stated acceptance is the mean over verifications (speculation.variation)."
        )
    if speculation.sampling is not None:
        own.append(_sampling(speculation.sampling))
    if speculation.drift is not None:
        steps = scenario.measured_steps
        ends = sorted({steps.start, steps.stop - 1})
        told = " and ".join(f"{acceptance_at(speculation, step).mean:.3g} in step {step:,}" for step in ends)
        own.append(
            f"Acceptance length drifts: {told} (stated course of a draft "
            f"{'trained online' if speculation.trained_online else 'that is frozen'}; speculation.drift)."
        )
    if choice is not None:
        own.append(
            f"Draft lengths follow the live batch, in the mean of its tokens: {_stretches(choice)} "
            "(speculation.policy); graphs are captured for every length, and a resting draft keeps its memory."
        )
    if scenario.trainer.sequence_packing and not scenario.sequence_packing:
        own.append("Training the draft online forbids packing: samples are padded (speculation.online_packing).")
    return own


def _sampling(sampling: Sampling) -> str:
    return (
        f"Acceptance was stated for {sampling.stated_draft} drafts at temperature {sampling.stated_temperature:g}; "
        f"{sampling.draft} ones at {sampling.temperature:g} move its logit by {sampling_move(sampling):+.2g} (fitted "
        "to four models, and a published range; speculation.sampling)."
    )


def _stretches(choice: PolicyChoice) -> str:
    """Drafted tokens by live sequences, such as ``5 up to 12 sequences, 3 up to 64, 0 above``."""
    drafted = np.round(choice.drafted[1:], 1)
    ends = np.append(np.flatnonzero(np.diff(drafted)), len(drafted) - 1)
    told = [f"{drafted[end]:g} up to {end + 1:,}" for end in ends[:SHOWN_STRETCHES].tolist()]
    rest = " and so on" if len(ends) > SHOWN_STRETCHES else ""
    return f"{', '.join(told)} sequences{rest}"
