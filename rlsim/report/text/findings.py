"""What a projection says, found in its numbers: the verdict, the phases of a step, who sets the pace, where to look."""

from collections.abc import Mapping

from rlsim.report import format as fmt
from rlsim.results import PHASES, Interval, PhasePart, Projection, Variant

SYNC_PHASES = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s")
"""What a synchronous step adds up."""
ASYNC_PHASES = ("exposed_generation_s", "data_s", "prepare_s", "logprob_s", "train_s", "refit_s")
"""What the trainer's step adds up to when generation runs beside it."""
PACE_SHARE = 0.05
"""Waiting below this share of an asynchronous step means that the trainer sets the pace."""
NOTABLE_SHARE = 0.005
"""Differences and rests below this share of a step are rounding to a reader."""


PhaseSeconds = Mapping[str, float]
"""Mean seconds by the contract names of phases, in the order of the step."""


def step_phases(arm: Variant, asynchronous: bool) -> PhaseSeconds:
    """The phases whose sum is the step; what they leave of it or exceed it by is ``other``."""
    names: tuple[str, ...] = ASYNC_PHASES if asynchronous else SYNC_PHASES
    if not asynchronous and arm.phases.exposed_generation_s.mean < arm.phases.generation_s.mean:  # a step that streams
        names = tuple("exposed_generation_s" if name == "generation_s" else name for name in names)
    found = {name: arm.phases[name].mean for name in names}
    rest = arm.step_s.mean - sum(found.values())
    return {**found, "other": rest} if abs(rest) > NOTABLE_SHARE * arm.step_s.mean else found


def waiting_share(arm: Variant) -> float:
    """Share of an asynchronous step in which the trainer waits for generation."""
    return arm.phases.exposed_generation_s.mean / arm.step_s.mean


def trainer_sets_pace(arm: Variant) -> bool:
    """Whether generation hides behind the trainer in an asynchronous step."""
    return waiting_share(arm) < PACE_SHARE


def parts_by_phase(arm: Variant) -> dict[str, list[PhasePart]]:
    """Parts that take time by phase; the longest phase first, and in each its largest part."""
    found = {name: [part for part in arm.parts if part.phase == name and part.seconds > 0] for name in PHASES}
    ranked = sorted((name for name in found if found[name]), key=lambda name: -arm.phases[name].mean)
    return {name: sorted(found[name], key=lambda part: -part.seconds) for name in ranked}


def leading_phase(projection: Projection) -> tuple[str, list[PhasePart]]:
    """The candidate's longest phase, asynchronously of the side that sets the pace, and its parts, the largest first.

    It needs a part that takes time.
    """
    arm = projection.candidate
    groups = parts_by_phase(arm)
    if projection.asynchronous:
        hidden = trainer_sets_pace(arm)
        # What runs beside the side that sets the pace costs the step nothing.
        groups = {name: parts for name, parts in groups.items() if (name == "generation_s") is not hidden}
    return next(iter(groups.items()))


def look_here_first(projection: Projection) -> str:
    """:func:`leading_phase` and its largest part in a sentence."""
    arm, asynchronous = projection.candidate, projection.asynchronous
    phase, parts = leading_phase(projection)
    seconds, part = arm.phases[phase].mean, parts[0]
    name, size = fmt.phase_label(phase, asynchronous), fmt.seconds(seconds)
    if phase != "generation_s" or not asynchronous:
        size += f", {fmt.percent(seconds / arm.step_s.mean)} of the step"
    share = fmt.percent(part.seconds / sum(each.seconds for each in parts))
    return f"Look here first: {name} ({size}), led by {part.name} ({share}, {part.label})."


def verdict(speedup: Interval) -> str:
    """``shortens``, ``lengthens``, ``unclear`` where the interval holds 1, ``unchanged`` within NOTABLE_SHARE of 1."""
    # An interval that holds 1 is unclear, however near its mean is.
    if abs(speedup.mean - 1) < NOTABLE_SHARE and not speedup.low < 1 < speedup.high:
        return "unchanged"
    return "shortens" if speedup.low > 1 else "lengthens" if speedup.high < 1 else "unclear"


def headline(projection: Projection, where: str = "") -> str:
    """The answer in one sentence, which claims no more than the intervals; ``where`` ends it, by default with the GPUs
    and what it assumes."""
    arm, step_s = projection.candidate, projection.candidate.step_s
    if not where:
        where = f"on {projection.num_gpus:,} {projection.hardware}"
        where += f", with {' and '.join(projection.caveats)}" if projection.caveats else ""
    if arm.speculates:
        verdict = _verdict_on(arm, projection.rollout_speedup, projection.end_to_end_speedup, where)
    else:
        supervised = projection.order == "supervised"
        plain = "Nothing is generated" if supervised else "No speculative decoding is configured"
        took = f"{fmt.seconds(step_s.mean)} [{fmt.seconds(step_s.low)}, {fmt.seconds(step_s.high)}]"
        verdict = f"{plain}: a step takes {took} {where}."
    return f"{missing_words(projection)}{verdict}"


def missing_words(projection: Projection) -> str:
    """What the answer lacks, a sentence for each part; empty where nothing is missing."""
    return "".join(f"{text[:1].upper()}{text[1:]}. " for text in projection.missing)


def _verdict_on(arm: Variant, rollout: Interval, step: Interval, where: str) -> str:
    """:func:`headline` of the candidate ``arm`` that speculates, and its speedups; ``where`` ends the sentence."""
    verdicts = {verdict(rollout), verdict(step)}
    if len(verdicts) > 1:
        link = "and" if verdicts == {"unclear", "unchanged"} else "but"
        text = f"{_clause(rollout, 'the rollout')} {link} {_clause(step, 'the step')}"
    elif verdicts <= {"unclear", "unchanged"}:
        beyond = " beyond the 90 % interval" if verdicts == {"unclear"} else ""
        text = f"changes neither the rollout ({fmt.times(rollout)}) nor the step ({fmt.times(step)}){beyond}"
    else:
        end = "," if verdicts == {"lengthens"} else ""
        text = f"{_clause(rollout, 'the rollout')} and the step{end} {fmt.times(step)}{end}"
    return f"Speculative decoding ({fmt.arm_label(arm)}) {text} {where}."


def _clause(speedup: Interval, what: str) -> str:
    verb = verdict(speedup)
    if verb in ("unclear", "unchanged"):
        beyond = " beyond the 90 % interval" if verb == "unclear" else ""
        return f"does not change {what}{beyond} ({fmt.times(speedup)})"
    if verb == "lengthens":
        return f"slows {what} down, speedup {fmt.times(speedup)},"
    return f"shortens {what} {fmt.times(speedup)}"
