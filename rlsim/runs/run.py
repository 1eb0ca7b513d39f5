"""run(): a run of a number of steps, chapter by chapter, with and without speculation on the same drawn work; from
its chapters and what it loses to one side of the answer; what it assumes, each sentence with the key that changes it.
"""

import functools
import hashlib
import itertools
import json
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import to_builtins

from rlsim.errors import InputError
from rlsim.files.journal import Journal, opened_journal
from rlsim.loading.scenario import as_scenario, scenario_digest
from rlsim.projection.model_assumptions import said
from rlsim.projection.project import about, baseline_of
from rlsim.projection.summary import cost_usd, energy_j, sampling_error
from rlsim.projection.uncertainty.predictive import DRAWS, around, between
from rlsim.report.folder import write_out
from rlsim.report.format import number, percent, seconds
from rlsim.results import PHASES, Interval, TokenLedger
from rlsim.results.run import CAUSES, STATES, Loss, Part, Run, RunSampling, RunSide
from rlsim.runs.chapters import Chapter, ChapterRecord, chapters_of, checkpoint_seconds, simulate_chapter, state_bytes
from rlsim.runs.losses import LOST, Course, Losses, losses_of
from rlsim.schema.base import changed
from rlsim.schema.loop import Loop
from rlsim.schema.run import Checkpoint, Faults, RunConditions, Validation
from rlsim.schema.scenario import MAX_SIMULATED_STEPS, Scenario
from rlsim.units import FloatArray

COMMAND = "run"
JOURNAL_FORMAT = 2
MOST_STEPS = 100_000
"""Steps of a run; all its replications together, too."""
Progress = Callable[[int, int], object]


def run(
    scenario: Scenario | Path | str,
    steps: int | None = None,
    samples: int | None = None,
    *,
    rows: int | None = None,
    epochs: float = 1.0,
    replications: int = 1,
    baseline: bool = True,
    out: Path | str | None = None,
    progress: Progress | None = None,
    chapter_steps: int | None = None,
) -> Run:
    """Simulate a run of ``steps`` training steps, of as many as consume ``samples``, or as use up a data set of
    ``rows`` prompts ``epochs`` times; one of the three is needed.

    replications: independent runs whose mean is given. baseline: also without speculation, where there is any. out:
    folder for run.json, steps.csv, run.png and scenario.yaml; an interrupted run into the same folder goes on where it
    stopped and ends with the same bytes. progress: called with (done, total) steps of all sides. chapter_steps: steps
    simulated together, in place of what memory allows. The scenario's ``run`` section counts; ``simulation.steps``,
    ``warmup_steps`` and ``replications`` do not. Raises InputError and Infeasible.
    """
    scenario = as_scenario(scenario)
    count = _steps(scenario, steps, samples, rows, epochs)
    if not 1 <= replications <= MAX_SIMULATED_STEPS:
        raise InputError(f"--replications must be 1 to {MAX_SIMULATED_STEPS:,}, got {replications:,}")
    if not 1 <= count * replications <= MOST_STEPS:
        raise InputError(
            f"a run needs 1 to {MOST_STEPS:,} steps in all replications together; got {count:,} x {replications:,}"
        )
    if chapter_steps is not None and chapter_steps < 1:
        raise InputError(f"chapter_steps must be at least 1, got {chapter_steps}")
    # How much of it a projection simulates is nothing that a run asks for.
    amounts = {"replications": replications, "steps": 1, "warmup_steps": 0}
    given = changed(scenario, simulation=changed(scenario.simulation, **amounts))
    sides = [given]
    if baseline and given.speculation.active:
        # First, as in a projection; the candidate is always the last side.
        sides.insert(0, baseline_of(given))
    chapters = chapters_of(given, count, chapter_steps)
    folder = Path(out) if out is not None else None
    # What must agree for an interrupted run to be continued.
    content = [JOURNAL_FORMAT, scenario_digest(given), len(sides), [[c.first, c.stop, c.forgotten] for c in chapters]]
    same = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    with opened_journal(folder, same, COMMAND) as journal:
        records = _simulated(sides, chapters, journal, progress)
        answer = _answer(given, count, sides, records)
        write_out(answer, folder)
    return answer


def _steps(scenario: Scenario, steps: int | None, samples: int | None, rows: int | None, epochs: float) -> int:
    if [steps, samples, rows].count(None) != 2:
        raise InputError("a run needs either --steps N or --samples M, or --rows N of a data set")
    if rows is not None:
        return _steps_of_data(scenario, rows, epochs)
    if samples is not None:
        if samples < 1:
            raise InputError(f"--samples must be at least 1, got {samples}")
        return math.ceil(samples / scenario.workload.samples_per_step)
    assert steps is not None
    return steps


def _steps_of_data(scenario: Scenario, rows: int, epochs: float) -> int:
    """Steps that a data set of ``rows`` prompts lasts: whole batches of each epoch, as loaders that drop the last one
    count (verl, NeMo-RL), each of all prompts that are generated, also for groups that are thrown away."""
    workload = scenario.workload
    taken = workload.prompts_per_step * workload.generated_batch_factor / workload.usable_group_share
    if not 0 < epochs <= MOST_STEPS:
        raise InputError(f"--rows with --epochs {epochs:g}: must be above 0 and at most {MOST_STEPS:,}")
    count = math.floor(math.floor(rows / taken) * epochs)
    if count < 1:
        raise InputError(f"--rows {rows:,}, --epochs {epochs:g}: fewer than the {taken:,.0f} prompts that a step takes")
    return count


def _simulated(
    sides: list[Scenario], chapters: tuple[Chapter, ...], journal: Journal | None, progress: Progress | None
) -> list[list[ChapterRecord]]:
    """The records of every side, those of the journal taken over."""
    total, done = len(sides) * chapters[-1].stop, 0
    out: list[list[ChapterRecord]] = []
    for side in sides:
        records: list[ChapterRecord] = []
        for chapter in chapters:
            number = len(out) * len(chapters) + len(records)
            if journal is not None and number in journal.rows:
                record = ChapterRecord.from_row(journal.rows[number])
            else:
                record = simulate_chapter(side, chapter)
                if journal is not None:
                    journal.add([(number, to_builtins(record))])  # floats survive JSON to the last bit
            records.append(record)
            done += chapter.steps
            if progress is not None:
                progress(done, total)
        out.append(records)
    return out


def _answer(given: Scenario, count: int, sides: list[Scenario], records: list[list[ChapterRecord]]) -> Run:
    found = [summed(side, each) for side, each in zip(sides, records, strict=True)]
    candidate, draws = found[-1]
    base, speedup = None, None
    if len(found) > 1:
        base, base_draws = found[0]
        ratio = base.seconds.mean / candidate.seconds.mean
        # Draw by draw: what both sides share moves both and leaves the ratio alone.
        speedup = around(ratio, base_draws / draws / ratio)
    of_model, warnings = records[-1][0].assumptions, records[-1][-1].warnings
    return Run(
        **about(given),
        replications=given.replications,
        num_steps=count,
        baseline=base,
        candidate=candidate,
        speedup=speedup,
        assumptions=(*of_model, *run_assumptions(given)),
        warnings=tuple(warnings),
    )


ROUNDING = 1e-9
"""Relative spread of sums of equal numbers."""
SHOWN = ("exposed_generation_s", "acceptance_length", "response_tokens", "truncated_share", "mean_batch", "staleness")
"""Columns whose means a part shows as they are."""
PARTS = 4
"""Parts of a run that its table shows: quarters, or single steps of a very short one."""
ENGINES = ("mean_batch", "mean_context_tokens")
"""Columns that are known of blocks alone, not of single steps."""
SCALING = ("slow_nodes", "replica_faults", "steps_again")
"""Losses that are steps, or parts of them: the model's error moves them as it moves the steps."""


def summed(scenario: Scenario, chapters: Sequence[ChapterRecord]) -> tuple[RunSide, FloatArray]:
    """One side of a run, added up, with draws of its seconds, shape (DRAWS,).

    Raises Infeasible where failures leave it hardly any progress.
    """
    course = Course.of(chapters)
    losses = losses_of(scenario, course)
    columns = _columns(course, losses)
    ledger = _ledger(scenario, course, losses)
    # fsum: the total must not depend on the order of the causes.
    seconds = math.fsum(loss.seconds.mean for loss in ledger.values())
    draws = _draws(scenario, course, losses)
    total = around(seconds, draws / seconds)
    totals = [
        float(course.plain_s[r].sum() + sum(found[r] for found in losses.totals.values()))
        for r in range(course.replications)
    ]
    edges = np.unique(np.linspace(0, course.steps, PARTS + 1).round().astype(int)).tolist()
    ledgers = [TokenLedger(*one.tokens) for one in chapters if one.tokens is not None]
    counted: Counter[int] = Counter()
    for one in chapters:
        counted.update({int(age): count for age, count in one.ages.items()})
    # What a run loses besides its steps counts as idle.
    worked_s = sum(float(s) * block.work_share for s, block in zip(course.mean_s, course.by_step(), strict=True))
    speculation = scenario.speculation
    side = RunSide(
        method=speculation.method if speculation.active else "none",
        draft_length=speculation.draft_length if speculation.active else 0,
        seconds=total,
        cost_usd=total.times(cost_usd(scenario, 1.0)),
        energy_at_most_j=total.times(energy_j(scenario, 1.0)),
        busy_share=worked_s / seconds,
        samples=round(float(columns["samples"].sum())),
        generated_tokens=float(columns["generated_tokens"].sum()),
        trained_tokens=float(columns["trained_tokens"].sum()),
        tokens=functools.reduce(operator.add, ledgers) if ledgers else None,
        ages={age: counted[age] / counted.total() for age in sorted(counted)},
        sampling=RunSampling(sampling_error(totals), float(np.std(course.plain_s))),
        ledger=ledger,
        parts=tuple(_part(scenario, course, columns, first, stop) for first, stop in itertools.pairwise(edges)),
        steps={name: tuple(values.tolist()) for name, values in columns.items()},
    )
    return side, draws


def _columns(course: Course, losses: Losses) -> dict[str, FloatArray]:
    """Values of every step, mean over replications, shape (steps,) each."""

    def mean(name: str) -> FloatArray:
        if name in ENGINES:
            return np.array([float(getattr(block, name)) for block in course.by_step()])
        return np.asarray(course.values[name].mean(axis=0))

    causes = {"steps": course.mean_s, **losses.by_step}
    step_s = np.asarray(sum(causes[cause] for cause in CAUSES), dtype=np.float64)
    return {
        "step": np.arange(1.0, course.steps + 1),
        "end_s": np.cumsum(step_s),
        "step_s": step_s,
        **{f"{cause}_s": causes[cause] for cause in CAUSES},
        **{name: mean(name) for name in (*PHASES, *STATES)},
    }


def _draws(scenario: Scenario, course: Course, losses: Losses) -> FloatArray:
    """Draws of the run's seconds: the model's error, common to all chapters, and one history of what it loses."""
    steps = _modelled(course, course.mean_s, "step_factors")
    # Histories are fewer than draws and are used in turn.
    number = np.arange(DRAWS) % losses.histories
    scale = steps / float(course.mean_s.sum())
    out = steps + _validation(scenario, course)
    for cause in LOST:
        if cause != "validation":
            out = out + losses.totals[cause][number] * (scale if cause in SCALING else 1.0)
    return np.asarray(out, dtype=np.float64)


def _validation(scenario: Scenario, course: Course) -> FloatArray:
    """Draws of the seconds of all validations: generated ones have the error of generation, stated ones none."""
    seconds = course.values["validation_s"].mean(axis=0)
    generated = scenario.run and scenario.run.validation and scenario.run.validation.samples
    return _modelled(course, seconds, "generation_factors") if generated else np.full(DRAWS, float(seconds.sum()))


def _modelled(course: Course, seconds: FloatArray, factors: str) -> FloatArray:
    """Draws of the sum of ``seconds`` of every step under the factors of its block."""
    out = np.zeros(DRAWS)
    for block in course.blocks:
        out += float(seconds[block.first : block.stop].sum()) * np.asarray(getattr(block, factors))
    return out


def _ledger(scenario: Scenario, course: Course, losses: Losses) -> dict[str, Loss]:
    """Seconds by cause; causes that took none are left out but for the steps."""
    plain_s = float(course.mean_s.sum())
    steps = around(plain_s, _modelled(course, course.mean_s, "step_factors") / plain_s)
    out = {"steps": Loss(seconds=steps, events=float(course.steps))}
    for cause in LOST:
        seconds, found = float(losses.by_step[cause].sum()), losses.totals[cause]
        if cause == "validation":
            found = _validation(scenario, course)
        low, high = between(found)
        # Quantiles of equal numbers differ in the last bits; a stated cost has no interval.
        if np.ptp(found) <= ROUNDING * seconds:
            low = high = seconds
        if found.max() > 0:
            interval = Interval(seconds, min(low, seconds), max(high, seconds))
            out[cause] = Loss(seconds=interval, events=losses.events[cause])
    return out


def _part(scenario: Scenario, course: Course, columns: dict[str, FloatArray], first: int, stop: int) -> Part:
    part_s = np.zeros(course.steps)
    part_s[first:stop] = course.mean_s[first:stop]
    factors = _modelled(course, part_s, "step_factors") / float(part_s.sum())
    mean = {name: float(values[first:stop].mean()) for name, values in columns.items()}
    tokens, seconds = mean["trained_tokens"], mean["step_s"]
    return Part(
        first=first + 1,
        last=stop,
        step_s=around(seconds, factors),
        tokens_per_s_per_gpu=tokens / seconds / scenario.cluster.num_gpus,
        **{name: mean[name] for name in SHOWN},
    )


OPTIONAL = {
    "response_growth": "growth of the responses",
    "turns_growth": "growth of the turns",
    "validation": "validation",
    "checkpoint": "checkpoints",
    "faults": "failures",
    "stalls": "stalls of the weight publication",
    "slow_nodes": "slow nodes",
}


def run_assumptions(scenario: Scenario) -> tuple[str, ...]:
    """Sentences with assumptions of the run besides those of its steps, and with what it leaves out."""
    given, power = scenario.run or RunConditions(), scenario.hardware.power_w
    out = []
    for what, key in (("Response lengths", "response_growth"), ("Turns", "turns_growth")):
        if grown := getattr(given, key):
            points = ", ".join(f"{factor:g} at step {step:,}" for step, factor in grown)
            out.append(said("run growth", what=what, points=points, key=key))
    if given.validation is not None:
        out.append(_validated(given.validation))
    if given.checkpoint is not None:
        out.append(_checkpoint(scenario, given.checkpoint))
    if given.faults is not None:
        out.append(_faults(scenario, given.faults))
    if (stalls := given.stalls) is not None:
        out.append(said("run stalls", share=percent(stalls.probability, 1), took=seconds(stalls.seconds)))
    if (slow := given.slow_nodes) is not None:
        out.append(said("run slow nodes", factor=slow.factor, share=percent(slow.share, 2)))
    absent = {"turns_growth": scenario.workload.agent is None, **_absent(scenario.loop)}
    missing = [name for key, name in OPTIONAL.items() if not getattr(given, key) and not absent.get(key)]
    if missing:
        out.append(f"Not in this run: {', '.join(missing)} (section run).")
    return (*out, said("run energy", power=power.value, source=power.source))


def _absent(loop: Loop) -> dict[str, bool]:
    """What cannot happen where nothing is generated, or nothing is trained."""
    alone = loop.supervised or loop.rollouts_alone
    training = ("validation", "checkpoint") if loop.rollouts_alone else ()
    return {"response_growth": loop.supervised, "stalls": alone, **dict.fromkeys(training, True)}


def _validated(validation: Validation) -> str:
    form = "run validation stated" if validation.samples is None else "run validation"
    took = "" if validation.seconds is None else seconds(validation.seconds)
    return said(form, steps=validation.every_steps, samples=validation.samples, took=took)


def _checkpoint(scenario: Scenario, checkpoint: Checkpoint) -> str:
    took = seconds(checkpoint_seconds(scenario, checkpoint))
    if checkpoint.bytes_per_s is not None:
        size, rate = state_bytes(scenario) / 1e12, checkpoint.bytes_per_s / 1e9
        took += f", {number(size)} TB at {number(rate)} GB/s (run.checkpoint.bytes_per_s)"
    return said("run checkpoint", steps=checkpoint.every_steps, took=took, share=percent(checkpoint.blocking_share))


def _faults(scenario: Scenario, faults: Faults) -> str:
    form = "run faults" if scenario.cluster.colocated else "run faults of pools"
    lost = "prefills its requests again" if faults.keep_tokens else "begins its requests anew"
    away, restart = seconds(faults.replica_restart_s), seconds(faults.restart_s)
    return said(form, hours=faults.gpu_hours_between, restart=restart, away=away, lost=lost)
