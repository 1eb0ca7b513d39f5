"""A sweep, a comparison, a sensitivity and a plan in a terminal, and what answers say of money and CUDA graphs."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import RULE, Cell, Row, Table, cell
from rlsim.results.planning import Comparison, Sensitivity
from rlsim.results.sweep import ACCEPTANCE_KEY, DRAFT_KEYS, SweepResult, break_even_lengths, interval_in
from rlsim.units import SECONDS_PER_HOUR

SHOWN = 10
SHARE_KEY = "generation_share"
NOTABLE_EAGER_SHARE = 0.02
"""Share of eager iterations from which an answer warns of them."""


def render_sweep(result: SweepResult, style: Style = DEFAULT_STYLE) -> str:
    """Counts, the fastest cells, break-even acceptance lengths, and why cells cannot run."""
    # Cells of different batches compare only by the time of a sample.
    done = sorted(result.done, key=lambda row: row["step_s"] / (result.samples(row) if result.batch_varies else 1))
    counts = fmt.counted(len(result.rows), "cell") + f", {len(done)} can run, {result.replications} replications each"
    if result.own_replications and result.replications < result.own_replications:
        counts += f" (project takes {result.own_replications}: --replications {result.own_replications} says the same)"
    if result.own_replications == 0:
        counts += " (project takes as many as simulation.precision asks for)"
    shown = done[:SHOWN]
    prices = {row["cost_per_step_usd"] / row["step_s"] / row["num_gpus"] * SECONDS_PER_HOUR for row in shown}
    named = [(" ".join(f"{name.rpartition('.')[2]}={row[name]}" for name in result.columns), row) for row in done]
    return sections(
        style.wrapped(f"{result.scenario}: {counts}"),
        *map(style.wrapped, result.verdict),
        [*_fastest(result, shown).lines(style), *style.wrapped(fmt.price_remark(prices), "  ")],
        *(style.wrapped(f"With {text}.") for text in result.caveats),
        *map(style.wrapped, eager_remark(named)),
        _break_even(result, style),
        _reasons(result, style),
    )


def _fastest(result: SweepResult, shown: Sequence[dict[str, Any]]) -> Table:
    """The step stands last: where the terminal is narrow, the last column alone keeps its intervals."""
    names, split = list(result.columns), splits_of(result)
    per_sample = ["ms/sample"] if result.batch_varies else []
    # Beside no speculation; cells without any are themselves what they would be compared with.
    gains = {"rollout": "rollout", "end_to_end": "end to end"} if any(row["draft_length"] for row in shown) else {}
    rows: list[Sequence[Cell | str]] = [
        (
            *(str(row[name]) for name in names),
            *(split_of(row) for _ in split),
            *(f"{1e3 * row['step_s'] / result.samples(row):.2f}" for _ in per_sample),
            fmt.fixed(row["cost_per_step_usd"], 2),
            *(cell(interval_in(row, f"{part}_speedup"), 2, "x") for part in gains),
            cell(interval_in(row, "step_s"), 1),
        )
        for row in shown
    ]
    title = f"Fastest {len(shown)}" + (" by time per consumed sample" if result.batch_varies else "")
    heads = [
        *(name.rpartition(".")[2] for name in names),
        *split,
        *per_sample,
        "USD/step",
        *gains.values(),
        "step (s)",
    ]
    sides = [">" if all(isinstance(row[name], int | float) for row in shown) else "<" for name in names]
    return Table(title, "mean [90 % interval]", heads, rows, "".join(sides) + ">")


def splits_of(result: SweepResult) -> list[str]:
    """Name of the column with the split of each cell, where shares of the GPUs are asked for, which are rounded to
    whole replicas and training shards, or a lag, which takes the best of some."""
    return ["generate+train"] if {SHARE_KEY, "lag"} & set(result.columns) else []


def split_of(row: Mapping[str, Any]) -> str:
    """Generating and training GPUs of a cell that can run."""
    generating, training = row["generation_gpus"], row["training_gpus"]
    # Pools that together exceed the cluster are the same GPUs.
    apart = generating + training + row["reference_gpus"] <= row["num_gpus"]
    return f"{generating}+{training}" if apart else f"{training} shared"


def eager_remark(cells: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A warning where some of the named cells go beyond the largest captured CUDA graph; empty without any."""
    beyond = [(row["eager_share"], name) for name, row in cells if row.get("eager_share", 0.0) > NOTABLE_EAGER_SHARE]
    if not beyond:
        return []
    share, worst = max(beyond, key=lambda one: one[0])
    limits = sorted({int(row["captured_tokens"]) for _, row in cells})
    return [
        f"Warning: {len(beyond)} of {len(cells)} go beyond the largest captured CUDA graph "
        f"({' or '.join(map(str, limits))} tokens, engine.max_captured_tokens), up to {fmt.percent(share)} of the "
        f"iterations ({worst}). What a launch costs is known within a factor of two, and the limit is the engine's "
        "default unless stated: check what yours captures before you choose by this cliff."
    ]


def _break_even(result: SweepResult, style: Style) -> list[str]:
    names = list(result.columns)
    draft = next((name for name in DRAFT_KEYS if name in names), None)
    # With a third axis there would be several lengths for one k.
    if draft is None or sorted(names) != sorted([draft, ACCEPTANCE_KEY]):
        return []
    lengths = break_even_lengths(result.done, draft)
    if not lengths:
        ahead = {row["rollout_speedup"] > 1.0 for row in result.done}
        does = "does better or worse than none" if len(ahead) > 1 else "wins" if True in ahead else "loses"
        return [f"Each draft length {does} at all of these acceptance lengths; none breaks even between them."]
    rows = [(str(k), f"{length:.2f}") for k, length in lengths.items()]
    title = "The rollout breaks even at acceptance length"
    return Table(title, "", ("k", "acceptance length"), rows, ">").lines(style)


def _reasons(result: SweepResult, style: Style) -> list[str]:
    reasons = Counter(f"{row['status']}: {row['reason']}" for row in result.rows if row["status"] != "ok")
    rows = [(str(count), reason) for reason, count in reasons.most_common(SHOWN)]
    if len(reasons) > SHOWN:
        rows.append(("", f"and {len(reasons) - SHOWN} more reasons"))
    return Table("Cells that cannot run", "", ("", ""), rows, "><").lines(style)


LONGEST_VALUE = 40
LONG_STEP_S = 10.0
"""From here on a comparison needs tenths of seconds alone."""


def render_comparison(comparison: Comparison, style: Style = DEFAULT_STYLE) -> str:
    """The verdict and the phase that explains the difference, what differs in the scenarios, phases side by side."""
    first, second = comparison.names
    names = (first, second) if first != second else (f"A ({first})", f"B ({second})")
    changed = [(key, _brief(a), _brief(b)) for key, (a, b) in _differences(comparison).items()]
    scenario = Table("Scenario", "", ["", *names], changed, "<").lines(style)
    longest_s = max(side.mean for side in comparison.step_s)
    decimals = 1 if longest_s >= LONG_STEP_S else fmt.decimals_for(longest_s)
    phases = [
        (
            *(
                _phase_name(change.phase, comparison),
                *(f"{one:.{decimals}f}" for one in (change.before_s, change.after_s)),
            ),
            f"{change.after_s - change.before_s:+.{decimals}f}",
            "" if change.share is None else fmt.percent(change.share),
        )
        for change in comparison.phases
        if change.before_s or change.after_s  # what neither does is no phase of theirs
    ]
    gap = comparison.step_s[1].mean - comparison.step_s[0].mean
    step = Row(("step", *(cell(side, decimals) for side in comparison.step_s), f"{gap:+.{decimals}f}", ""), strong=True)
    money = ("USD per step", *(fmt.fixed(cost, 2) for cost in comparison.cost_per_step_usd), "", "")
    heads = ["", *names, "difference", "share"]
    times = Table("Time per step", "seconds, mean [90 % interval]", heads, [*phases, RULE, step, money])
    pairing = "on the same drawn work" if comparison.paired else "on different work"
    sentences = [f"Speedup {fmt.times(comparison.speedup)}, {pairing}.", _told_apart(comparison)]
    if comparison.explained_by is not None and not comparison.as_long:
        sentences.append(f"Most of the difference is {_phase_name(comparison.explained_by, comparison)}.")
    headline = " ".join(filter(None, [*sentences, *comparison.verdict]))
    return sections(
        style.opening(headline, f"{names[0]} against {names[1]}"),
        scenario or ["The scenarios do not differ."],
        [*times.lines(style), *style.wrapped(fmt.price_remark(comparison.price_per_gpu_hour_usd), "  ")],
        style.numbered("Warnings", comparison.warnings),
    )


def _differences(comparison: Comparison) -> dict[str, tuple[Any, Any]]:
    """What differs, of a model, device or stack of another name its name alone, which stands for all its keys."""
    found = comparison.differences
    named = [key.removesuffix("name") for key in found if key.endswith(".name")]
    shown: dict[str, tuple[Any, Any]] = {}
    for key, values in found.items():
        prefix = next((prefix for prefix in named if key.startswith(prefix)), None)
        if prefix is None:
            shown[key] = values
        elif key == f"{prefix}name":
            others = sum(other.startswith(prefix) for other in found) - 1
            shown[f"{key} (+{others} of its keys)" if others else key] = values
    return shown


def _told_apart(comparison: Comparison) -> str:
    """How sure the order of the two is, and what would make it surer; empty where nothing differs."""
    if not comparison.differences or comparison.speedup.low == comparison.speedup.high:
        return ""
    side, share = ("B", comparison.b_faster) if comparison.b_faster >= 0.5 else ("A", 1.0 - comparison.b_faster)
    more, sure = comparison.more_replications, f"{side} is the faster one with {fmt.percent(share)}"
    if comparison.speedup.low <= 1.0 <= comparison.speedup.high and more:
        return (
            f"They cannot be told apart: {sure}, and most of what is unsure is the simulation's own error; {more} "
            f"replications beyond the {comparison.replications} done would settle it (simulation.replications)."
        )
    return "They take as long, within 1 %." if comparison.as_long else f"{sure}."


def _phase_name(phase: str, comparison: Comparison) -> str:
    """Asynchronous steps hold the wait for a generator only, not its busy time."""
    if phase != "generation" or "async" not in comparison.modes:
        return phase
    return "exposed generation" if set(comparison.modes) == {"async"} else "generation (exposed where asynchronous)"


def _brief(value: Any) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


STEPS_COMMAND = "rlsim calibrate own own_steps.csv"
LEAST_SHARE, LEAST_SAVED = 0.02, 0.02
"""Sources shown: of the variance, or of the regret that knowing them saves."""


def render_sensitivity(sensitivity: Sensitivity, style: Style = DEFAULT_STYLE) -> str:
    """The interval, the choice among alternatives, and what is worth measuring with the command that measures it."""
    step, more = sensitivity.step_s, sensitivity.step_with_inputs_s
    head = (
        f"{sensitivity.scenario}: step {step.mean:.1f} s [{step.low:.1f}, {step.high:.1f}], with its stated inputs "
        f"uncertain as well [{more.low:.1f}, {more.high:.1f}]"
    )
    share = fmt.percent(sensitivity.regret_s / step.mean, 1)
    choice = (
        f"Choosing {sensitivity.chosen} now costs {sensitivity.regret_s:.2g} s a step ({share}) against always knowing "
        "better: the expected regret that measurements can save."
    )
    return sections(
        style.wrapped(head),
        [*_choices(sensitivity).lines(style), *style.wrapped(choice, "  ")],
        _sources(sensitivity, style),
        [style.bold("How"), *_settling(sensitivity, style)],
        _inputs(sensitivity).lines(style),
    )


def _choices(sensitivity: Sensitivity) -> Table:
    rows = [
        (
            *(one.name, cell(one.step_s, 1), fmt.percent(one.best)),
            fmt.percent(one.regret_s / sensitivity.step_s.mean, 1),
            _saved(one.saved_s, sensitivity),
        )
        for one in sorted(sensitivity.alternatives, key=lambda one: one.regret_s)
    ]
    heads = ("", "step (s)", "fastest", "regret", "saved by a run")
    return Table("Alternatives", "regret in % of the step; share of it that one measured step saves", heads, rows)


def _sources(sensitivity: Sensitivity, style: Style) -> list[str]:
    ways, regret_s = _ways(sensitivity), sensitivity.regret_s
    rows = [
        (
            f"{one.source}{' (assumed)' if one.assumed else ''}",
            fmt.percent(one.share),
            fmt.signed_percent(one.narrowed - 1),
            _saved(one.saved_s, sensitivity),
            str(ways.index((one.settle, one.command)) + 1),
        )
        for one in sensitivity.sources
        if one.share >= LEAST_SHARE or (regret_s and one.saved_s / regret_s >= LEAST_SAVED)
    ]
    heads = ("", "of the variance", "interval if known", "regret saved", "by")
    note = "shares of the variance and of the regret of choosing now"
    return Table("What to measure next", note, heads, rows).lines(style)


def _ways(sensitivity: Sensitivity) -> list[tuple[str, str]]:
    """Measurements to make, each with the command that takes it in, in the order of what they save."""
    return list(dict.fromkeys((one.settle, one.command) for one in sensitivity.sources))


def _settling(sensitivity: Sensitivity, style: Style) -> list[str]:
    ways = [f"{settle}: {command}" for settle, command in _ways(sensitivity)]
    best = max(sensitivity.alternatives, key=lambda one: one.saved_s)
    if best.changes and best.saved_s > 0:
        settings = " ".join(f"--set {shlex.quote(change)}" for change in best.changes)
        ways.append(f"time one step of {best.name} instead ({settings}), the most telling run: {STEPS_COMMAND}")
    return [line for number, way in enumerate(ways, start=1) for line in style.wrapped(way, f"  {number}. ")]


def _inputs(sensitivity: Sensitivity) -> Table:
    rows = [
        (
            *(one.key, f"{one.low:.4g}", f"{one.high:.4g}"),
            *(fmt.signed_percent(moved, 1) for moved in (one.at_low, one.at_high)),
            *(_saved(one.saved_s, sensitivity), one.reason),
        )
        for one in sensitivity.inputs
    ]
    heads = ("", "low", "high", "at low", "at high", "regret", "what it is")
    return Table("What the scenario states", "no part of the interval; step at both ends", heads, rows, "<>>>>><")


def _saved(seconds: float, sensitivity: Sensitivity) -> str:
    """A saved regret as a share of that of choosing now; ``-`` where there is next to none."""
    regret_s = sensitivity.regret_s
    return fmt.percent(seconds / regret_s) if regret_s > 1e-4 * sensitivity.step_s.mean else "-"
