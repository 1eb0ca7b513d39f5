"""A blame, a headroom ladder, published techniques and a check of a run in a terminal, the last in at most 40 lines."""

from collections.abc import Sequence

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import RULE, Row, Table, cell
from rlsim.results.check import Check, Explanation, ExplanationGroup, Headroom, Measurement, Rung, StatedFault
from rlsim.results.planning import Blame, Technique, Techniques

LEAST_SHARE = 0.0005
"""Of all GPU time; smaller causes are not shown in a terminal."""


def render_blame(blame: Blame, style: Style = DEFAULT_STYLE) -> str:
    """Idle time by cause, what each removal gains alone and in turn, and tail policies."""
    shown = [idle_table(blame, LEAST_SHARE), removals_table(blame), policies_table(blame)]
    head = f"{blame.scenario}: {blame.step_s:.1f} s a step. {idle_words(blame)}"
    return sections(style.wrapped(head), *(table.lines(style) for table in shown))


def idle_words(blame: Blame) -> str:
    """Sentence with the number of GPUs and the share of the step in which they are idle."""
    gpus = f"{fmt.counted(blame.num_gpus, 'GPU')} {'is' if blame.num_gpus == 1 else 'are'}"
    return f"Its {gpus} idle {fmt.percent(1.0 - blame.work_share)} of the step."


def idle_table(blame: Blame, least_share: float = 0.0) -> Table:
    """Idle time by cause, of causes from ``least_share`` of all GPU time on."""
    shown = [one for one in blame.idle if one.share >= least_share]
    rows = [(one.pool, one.cause, f"{one.gpu_s:,.0f}", fmt.percent(one.share, 1)) for one in shown]
    note = "GPU-seconds per step; share of all GPU time"
    return Table("Idle GPU time", note, ("GPUs", "waits for", "GPU-s", "share"), rows, "<<>")


def removals_table(blame: Blame) -> Table:
    """Table of seconds that each removal saves alone and in turn, and of the step without all of them."""
    rows = []
    for one in blame.removals:
        how = "; ".join(filter(None, (one.how, one.why)))
        rows.append((one.cause, f"{one.step_s:.1f}", f"{one.saved_s:+.1f}", f"{one.chain_s:+.1f}", how))
    total = f"{blame.step_s - blame.left_s:+.1f}"
    last = Row(("all of them", f"{blame.left_s:.1f}", "", total, "what is left is work"), strong=True)
    note = "step (s) and what it saves alone, and after those above it"
    return Table("Without it", note, ("", "step", "alone", "in turn", "how"), [*rows, RULE, last], "<>>><")


def policies_table(blame: Blame) -> Table:
    """Policies against the tail: what they save, or why they cannot run."""
    rows = [
        (one.name, "-", "", one.reason)
        if one.step_s is None
        else (one.name, f"{one.step_s:.1f}", f"{blame.step_s - one.step_s:+.1f}", one.how)
        for one in blame.what_ifs
    ]
    note = "step (s) and what it saves"
    return Table("Policies against the tail", note, ("", "step", "saves", "how"), rows, "<>><")


def render_headroom(found: Headroom, style: Style = DEFAULT_STYLE) -> str:
    """The sentence, the ladder, and who can climb each rung."""
    return sections(
        style.opening(headroom_words(found), f"{found.model} on {found.num_gpus:,} {found.hardware}, {found.scenario}"),
        ladder_table(found).lines(style),
        style.paragraphs(map(rung_words, found.rungs[1:]), "- "),
    )


def headroom_words(found: Headroom) -> str:
    """Sentence with the step over the last rung, and the rung that saves most."""
    # The first rung saves nothing, so that it is never the longest.
    last, most = found.rungs[-1], max(found.rungs, key=lambda one: one.saved_s)
    return (
        f"A step of {found.step_s:.1f} s stands {found.ratio(last):.1f}x above the roofline ({last.step_s:.1f} s); "
        f"the longest rung, {most.saved_s:.1f} s, is '{most.name}'."
    )


def ladder_table(found: Headroom) -> Table:
    """A row for each rung."""
    rows = [
        (one.name, f"{one.step_s:.1f}", f"{-one.saved_s:+.1f}" if one.saved_s else "", f"{found.ratio(one):.2f}x",
         f"{one.generation_s:.1f}", one.who)
        for one in found.rungs
    ]  # fmt: skip
    heads = ("with all rungs above", "step (s)", "saves", "faster", "generation", "who can")
    return Table("Headroom", "each simulated on the same drawn work", heads, rows, "<>>>><")


def rung_words(one: Rung) -> str:
    """Text of how a rung is climbed, and by which keys."""
    keys = f"; in the scenario: {', '.join(one.changes)}" if one.changes else ""
    return f"{one.name}: {one.how}{keys}{f' ({one.why})' if one.why else ''}"


MOST_GROUPS, MOST_MEMBERS, MOST_ALIKE, MOST_TESTS, MOST_STATED = 3, 3, 6, 2, 2
LABELS: dict[str, str] = fmt.NAMES["checked"]
"""Phases as a check names them."""


def render_check(check: Check, style: Style = DEFAULT_STYLE) -> str:
    """Verdict, phases, what explains them best, what tells explanations apart, and what the configuration costs."""
    about = f"{check.model} on {check.num_gpus:,} {check.hardware}, {check.scenario}"
    if check.source:
        about += f"; {check.source}"
    tests = list(map(test_words, check.tests[:MOST_TESTS]))
    return sections(
        style.opening(verdict_words(check), about),
        phases_table(check).lines(style)[1:],
        _explanations(check, style),
        _listed("What tells them apart", [] if check.likely_healthy else tests, style),
        _listed("In the configuration itself", list(map(stated_words, check.stated[:MOST_STATED])), style),
        style.paragraphs(check.remarks, "- "),
    )


def verdict_words(check: Check) -> str:
    """One sentence: healthy or not, and where the time is; a second one on how a tuned run compares."""
    beside = "" if check.tuned_step_s is None else f" {fmt.beside_tuned(check.tuned_step_s, check.step.expected_s)}"
    return f"{_verdict(check)}{beside}"


def _verdict(check: Check) -> str:
    step = check.step
    slow = [one for one in check.phases[1:] if one.verdict == "slow"]
    fast = [one for one in check.phases[1:] if one.verdict == "fast"]
    where = ", ".join(LABELS[one.phase] for one in sorted(slow, key=lambda one: -(one.lost_s or 0.0)))
    expected = f"{step.expected_s.mean:.1f} s [{step.expected_s.low:.1f}, {step.expected_s.high:.1f}] expected"
    head = "Your run" if step.measured_s is None else f"A step of {step.measured_s:.1f} s, {expected}"
    if check.cannot_tell and step.verdict != "slow":
        return f"{head}: cannot tell whether that is as it should be. It hangs on {check.cannot_tell}."
    if check.likely_healthy and not slow and step.verdict != "slow":
        shorter = f", shorter in {', '.join(LABELS[one.phase] for one in fast)}" if fast else ""
        return f"{head}: as it should be{shorter} (healthy with {fmt.percent(check.healthy)})."
    verdict = (
        f"slow in {where}" if where else {"slow": "slow", "fast": "faster than expected"}.get(step.verdict, "unclear")
    )
    ratio = "" if step.ratio is None else f", {step.ratio:.2f}x"
    lost = "" if step.lost_s is None or step.lost_s <= 0 else f"; {step.lost_s:.1f} s are lost"
    return f"{head}{ratio}: {verdict}{lost} (healthy with {fmt.percent(check.healthy)})."


def phases_table(check: Check) -> Table:
    """Table of measured seconds and MFU by phase, beside those expected."""
    rows = []
    for one in check.phases:
        measured = "-" if one.measured_s is None else fmt.fixed(one.measured_s, 1)
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}x"
        verdict = "" if one.verdict == "not given" else one.verdict
        used, usual = ("" if mfu is None else fmt.percent(mfu, 1) for mfu in (one.mfu, one.expected_mfu))
        cells = LABELS[one.phase], measured, ratio, verdict, used, usual, cell(one.expected_s, 1)
        rows.append(Row(cells, strong=one.phase == "step"))
    return Table("", "", ("seconds", "yours", "ratio", "", "MFU", "usual MFU", "expected (s)"), rows, "<>><>>>")


def _explanations(check: Check, style: Style) -> list[str]:
    """The best groups, with cures of the first where the run is not healthy."""
    if not check.groups:
        why = f"Nothing on the list of known faults explains it ({check.tried} simulated on this scenario)."
        return [] if check.likely_healthy else style.wrapped(why)
    title = "If something is wrong all the same" if check.likely_healthy else "What would explain it best"
    lines = [style.bold(title) + style.dim(f"  of {check.tried} known faults, each simulated on this scenario")]
    for number, group in enumerate(check.groups[:MOST_GROUPS], start=1):
        lines += _group(number, group, style, cures=number == 1 and not check.likely_healthy)
    # Said last, so that the list does not read as complete.
    if check.unlisted > max(group.probability for group in check.groups):
        text = f"likelier than any of these: a cause that is not on the list ({fmt.percent(check.unlisted)})"
        lines += style.wrapped(text, "  ")
    return lines


def _group(number: int, group: ExplanationGroup, style: Style, cures: bool) -> list[str]:
    label = f"  {number}. {fmt.percent(group.probability):>5}  "
    most = MOST_MEMBERS if cures else 1
    shown, rest = group.members[:most], group.members[most:]
    lines: list[str] = []
    for place, one in enumerate(shown):
        head = label if place == 0 else " " * (len(label) - 4) + "or  "
        lines += style.wrapped(explanation_words(one), head, len(label))
        if cures:
            lines += style.wrapped(cure_words(one), " " * len(label) + "-> ", len(label) + 3)
    if rest:
        names = ", ".join(one.name.replace("_", " ") for one in rest[:MOST_ALIKE])
        lines += style.wrapped(f"looks the same: {names}", " " * len(label))
    return lines


def explanation_words(one: Explanation) -> str:
    """Text of a fault: its title, the keys that state it, and the seconds that it costs."""
    gain = f"; {one.gain_s:.0f} s of the step" if one.gain_s >= 0.5 else ""
    return f"{one.title}{f' ({one.changes[0]})' if one.changes else ''}{gain}"


def cure_words(one: Explanation) -> str:
    """Text of the cure of a fault."""
    return f"put right {one.cure}" if one.misstated else one.cure


def _listed(title: str, entries: Sequence[str], style: Style) -> list[str]:
    return [*([style.bold(title)] if entries else []), *style.paragraphs(entries, "  - ")]


def test_words(one: Measurement) -> str:
    """Text of a measurement, and the value that each explanation expects of it."""
    first, second = (name.replace("_", " ") for name in one.between)
    values = f"{fmt.number(one.values[0])} if {first}, {fmt.number(one.values[1])} if {second}"
    return f"{one.title} ({one.how}): {values}"


def stated_words(one: StatedFault) -> str:
    """Text of a fault that the scenario states, and the seconds that its cure saves."""
    return f"{one.title}: {', '.join(one.changes)} saves {one.saved_s:.1f} s of the expected step"


MOST_EXPLAINED = 6


def render_techniques(found: Techniques, style: Style = DEFAULT_STYLE) -> str:
    """The ranking, what the first ones ask and set, the best pair, and what the scenario cannot take."""
    about = []
    for one in faster(found)[:MOST_EXPLAINED]:
        about += style.wrapped(technique_words(one), "  ")
        about += style.wrapped(f"{' '.join(one.changes)}", "    ")
    return sections(
        style.opening(best_technique(found)),
        techniques_table(found).lines(style),
        ["What they ask and set", *about] if about else [],
        style.numbered("Not possible here", left_out_words(found)),
    )


def left_out_words(found: Techniques) -> list[str]:
    """Each reason why the scenario cannot take some techniques, with their titles."""
    titles: dict[str, list[str]] = {}
    for one in found.left_out:
        titles.setdefault(one.reason, []).append(one.title)
    return [f"{reason}: {'; '.join(alike)}" for reason, alike in titles.items()]


def techniques_table(found: Techniques) -> Table:
    """A row for each technique, the best pair first."""
    heads = ["", "step (s)", "speedup", "same update"]
    rows = [
        (one.name, cell(one.step_s, 1), fmt.times(one.speedup), "yes" if one.same_update else "no")
        for one in found.ranked
    ]
    return Table("Techniques", f"step now {fmt.seconds(found.step_s.mean)}", heads, rows)


def faster(found: Techniques) -> list[Technique]:
    """Techniques that shorten the step, fastest first."""
    return [one for one in found.ranked if one.speedup.mean > 1]


def technique_words(one: Technique) -> str:
    """Text of a technique: its title, what it asks for, and its source."""
    return f"{one.name}: {one.title}. Asks for {one.asks}. Source: {one.source}."


def best_technique(found: Techniques) -> str:
    """The one that shortens the step most, and the one with the same update."""
    best = found.best_pair or next(iter(found.techniques), None)
    if best is None or best.speedup.mean <= 1:
        return f"No technique shortens the step of {found.scenario}."
    exact = next((one for one in found.techniques if one.same_update and one.speedup.mean > 1), None)
    text = f"{best.title} shortens the step of {found.scenario} most, {fmt.times(best.speedup)}"
    if exact is not None and not best.same_update:
        text += f"; with the same update {exact.title}, {fmt.times(exact.speedup)}"
    return f"{text}."
