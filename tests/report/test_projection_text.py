"""The answer in a terminal: what it says, that it says it once, that it fits every terminal."""

import dataclasses
import io
import re

import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.report import format as fmt
from rlsim.report.style import Style
from rlsim.report.table import RULE, Cell, Row, table
from rlsim.report.text import findings
from rlsim.report.text.projection import MOST_LINES, render, render_answer, render_brief
from rlsim.report.text.support import BAR_CELLS
from rlsim.results import EngineStatistics, Interval, Provenance


def replace(record, **changes):
    """A record with other values."""
    return (
        dataclasses.replace(record, **changes)
        if dataclasses.is_dataclass(record)
        else record.model_copy(update=changes)
    )


def line_of(text: str, label: str) -> str:
    """The first line whose label is ``label``."""
    return next(line for line in text.splitlines() if line.strip().startswith(label))


def section(text: str, title: str) -> list[str]:
    """Lines of the section that begins with ``title``."""
    return next(part for part in text.split("\n\n") if part.startswith(title)).splitlines()


def numbers(line: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", line)]


@pytest.mark.parametrize("width", [100, 72, 60])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
@pytest.mark.parametrize("written", [render, render_brief, render_answer])
def test_lines_fit_any_width_and_any_encoding(projection, width, encoding, written):
    named = replace(projection, question="Сколько стоит шаг?")
    lines = written(named, Style(width, encoding=encoding)).splitlines()
    "".join(lines).encode(encoding)
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_what_would_print_as_zero_says_so_and_one_is_no_plural(projection):
    assert [fmt.counted(count, "GPU") for count in (0, 1, 2, 2000)] == ["0 GPUs", "1 GPU", "2 GPUs", "2,000 GPUs"]
    assert [fmt.kwh(joules) for joules in (0.0, 3.6e3, 3.6e5, 3.6e6, 9e7)] == ["0.0", "0.001", "0.1", "1.0", "25.0"]
    cheap = replace(projection, price_per_gpu_hour_usd=1e-6)
    assert "costs <0.01" in " ".join(render_answer(cheap).split()) and "0.00 USD" not in render_answer(cheap)


def test_brief_and_default_answers_are_short(projection):
    text = render_brief(projection)
    assert len(text.splitlines()) <= 5
    assert " ".join(text.split()).startswith(findings.headline(projection))
    for word in ("Look here first", projection.scenario, "USD", "measured", "modelled"):
        assert word in text
    crowded = replace(projection, warnings=tuple(f"Warning {i}: {'word ' * 40}" for i in range(9)))
    for one in (projection, crowded):
        lines = render_answer(one).splitlines()
        assert len(lines) <= MOST_LINES
        assert " ".join(lines).startswith(findings.headline(one)[:40])
        tried = "Try first" if one.try_first else "What would shorten it"
        for title in ("Time per step", "What bounds it", tried, "Memory and price", "How sure"):
            assert any(line.strip().startswith(title) for line in lines)
    assert "9 more" not in render_answer(projection)
    assert re.search(r"\d more \(--full\)|Warnings: 9", render_answer(crowded))


@pytest.mark.parametrize("keys", [(), ("trainer.recompute=full",), ("speculation.draft_graph=true", "k=3")])
def test_what_to_try_first_is_simulated_and_not_so_already(keys):
    found = project(load_scenario("quickstart", keys))
    text = " ".join(render_answer(found).split())
    if found.try_first is None:
        assert "Try first" not in text
        assert "rlsim improve" in text
    else:
        assert f"Try first: {found.try_first.title} ({' '.join(found.try_first.changes)})" in text
        assert not {one.replace('"', "") for one in found.try_first.changes} & set(keys)


def test_phases_of_the_table_add_up_to_the_step_and_bottlenecks_to_their_phase(projection):
    rows = section(render(projection), "Time per step")[2:]
    means = {}
    for row in rows[: next(i for i, row in enumerate(rows) if row.startswith("  USD at"))]:
        label, *values = re.split(r" {2,}(?=[\d<])", re.sub(r"\[[^\]]*\]", "", row.strip()))
        means[label] = [numbers(value)[0] for value in values[: 2 if projection.candidate.speculates else 1]]
    outside = {"step", "generation (busy)", "tokens/s/GPU", "USD/step", "of which refit"}
    parts = [values for label, values in means.items() if label not in outside and values]
    for column, step in enumerate(means["step"]):
        assert sum(part[column] for part in parts) == pytest.approx(step, rel=0.01)
    lines = section(render(projection), "What bounds each phase")[2:-1]
    total, parts = 0.0, 0.0
    for line in lines:
        if line.startswith("    "):
            parts += numbers(line.rsplit("  ", 1)[0])[-1]
            continue
        assert parts == pytest.approx(total, abs=0.3)
        total, parts = numbers(line)[-1], 0.0
    assert total > 0


def test_the_same_phases_share_a_row_and_what_they_leave_is_other(answer):
    made = answer("sync")
    table = section(render(made), "Time per step")
    assert [line.split()[0] for line in table[2:7]] == ["generation", "same", "─" * len(table[4].strip()), "step",
                                                        "tokens/s/GPU"]  # fmt: skip
    same = line_of("\n".join(table), "same in both:")
    assert re.findall(r"data|prepare|refit|log-prob|train|generation", same) == [
        *("data", "prepare", "refit", "log-prob", "train")
    ]
    assert fmt.fixed(made.candidate.phases.train_s.mean, 2) in same
    step = made.candidate.step_s
    longer = replace(
        made, candidate=replace(made.candidate, step_s=replace(step, mean=step.mean + 5, high=step.high + 5))
    )
    assert numbers(line_of(render(longer), "other")) == pytest.approx([0.0, 5.0], abs=0.01)
    assert "other" not in "\n".join(section(render(made), "Time per step"))


def test_asynchronous_times_tell_exposed_from_busy_and_the_side_that_sets_the_pace(answer):
    made = answer("async")
    text = render(made)
    saved = made.baseline.phases.exposed_generation_s.mean - made.candidate.phases.exposed_generation_s.mean
    assert line_of(text, "exposed generation").endswith(f"saves {fmt.seconds(saved)}")
    assert line_of(text, "generation (busy)").endswith(fmt.times(made.rollout_speedup))
    assert "refit pause" in text
    slower = replace(made, baseline=made.candidate, candidate=replace(made.baseline, method="ngram", draft_length=2))
    assert line_of(render(slower), "exposed generation").endswith(f"adds {fmt.seconds(saved)}")
    phases = {"exposed_generation_s": Interval(0.0, 0.0, 0.0)}
    hidden = replace(made.candidate, phases=replace(made.candidate.phases, **phases))
    text = render(replace(made, candidate=hidden))
    assert "candidate: the trainer sets the pace: it waits 0 % of the step for generation" in text
    assert "Look here first: generation" not in text
    phases = {"exposed_generation_s": Interval(*(made.candidate.step_s.mean / 2 for _ in range(3)))}
    waiting = replace(made.candidate, phases=replace(made.candidate.phases, **phases))
    text = render(replace(made, candidate=waiting))
    assert "candidate: generation sets the pace: the trainer waits 50 % of the step for it" in text
    assert "Look here first: generation (busy)" in text


def test_the_place_to_look_first_is_the_largest_part_and_statistics_are_told_once(projection):
    arm = projection.candidate
    found = re.search(r"Look here first: (.+?) \((?:[\d.,]+ m?s).*?\), led by (.+) \(",
                      findings.look_here_first(projection))  # fmt: skip
    phase = max((p for p in arm.parts if p.name == found[2]), key=lambda part: part.seconds).phase
    if not projection.asynchronous:
        names = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s")
        assert arm.phases[phase].mean == max(arm.phases[name].mean for name in names)
    assert max((p for p in arm.parts if p.phase == phase), key=lambda part: part.seconds).name == found[2]
    assert line_of(render(projection), found[1])
    lines = " ".join(" ".join(section(render(projection), "Engine statistics")).split())
    values = {name for arm in projection.variants.values() for name, _ in arm.statistics.items()}
    labels = fmt.NAMES["statistics"]
    assert values <= labels.keys() == {field.name for field in dataclasses.fields(EngineStatistics)}
    for name in values:
        text, unit = map(re.escape, labels[name])
        beside, told = f"{text} \\({unit}\\)", f"{text} \\S+ {unit}" if unit else text
        assert re.search(f"{beside}|{told}", lines), name
    plain, colored = render(projection), render(projection, Style(color=True))
    assert colored.startswith("\x1b[1m")
    assert [line.rstrip() for line in re.sub(r"\x1b\[\d*m", "", colored).splitlines()] == plain.splitlines()


def test_prices_memory_sources_and_assumptions_are_told(answer):
    made = answer("moe")
    text = render(made)
    costs = [made.num_gpus * 7.0 / 3600 * arm.step_s.mean for arm in (made.baseline, made.candidate)]
    row = numbers(line_of(text, "USD/step"))
    assert (row[0], row[3]) == pytest.approx(costs, abs=0.6)
    assert "USD at 7.00 per GPU and hour (hardware.price_per_gpu_hour_usd, assumed)" in text
    made = answer("sync")
    lines = section(render(made), "Memory per GPU")
    use, before = made.candidate.memory["generation"], made.baseline.memory["generation"]
    assert f"{fmt.gibibytes(use.total_bytes)} of {fmt.gibibytes(use.available_bytes)} GiB" in lines[1]
    assert f"baseline {fmt.gibibytes(before.total_bytes)} GiB" in lines[1]
    assert sum(numbers(lines[2])) == pytest.approx(numbers(lines[1])[0], abs=0.3)
    bar = section(render(replace(made, provenance=Provenance(0.64, 0.27, 0.09))), "Provenance")[1].split()[0]
    assert len(bar) == BAR_CELLS
    assert [bar.count(glyph) for glyph in "█▓░"] == [26, 10, 4]
    lines = section(render(replace(made, provenance=Provenance(0.998, 0.0, 0.002))), "Provenance")
    assert [lines[1].split()[0].count(glyph) for glyph in "█▓░"] == [39, 0, 1]
    assert "assumed <1 %" in lines[1]
    made = replace(answer("sync"), warnings=("word " * 40,))
    lines = section(render(made), "Warnings")
    assert lines[1].startswith("  1. word") and lines[2].startswith("     word")
    assert section(render(made), "Assumptions")[1].lstrip().startswith("1. ")


def test_a_style_is_what_the_stream_can_show(monkeypatch):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    assert Style.of(stream) == Style(100, False, "latin-1")
    assert Style.of(io.StringIO()) == Style()
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal(io.BytesIO(), encoding="utf-8")
    assert Style.of(terminal) == Style(60, True, "utf-8")
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style.of(terminal) == Style(60, False, "utf-8")


@pytest.mark.parametrize(("rollout", "step", "phrase"), [
    ((0.7, 0.68, 0.72), (0.8, 0.78, 0.82), "slows the rollout down, speedup 0.70x [0.68, 0.72], and the step"),
    ((1.0, 0.98, 1.02), (1.0, 0.99, 1.01), "changes neither the rollout"),
    ((1.3, 1.2, 1.4), (1.01, 0.99, 1.03), "shortens the rollout 1.30x [1.20, 1.40] but does not change the step"),
    ((1.3, 1.2, 1.4), (0.9, 0.88, 0.92), "but slows the step down, speedup 0.90x [0.88, 0.92]"),
    ((1.3, 1.2, 1.4), (0.998, 0.9971, 0.9989), "but does not change the step (1.00x [1.00, 1.00])"),
    ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), "changes neither the rollout (1.00x [1.00, 1.00]) nor the step"),
    ((1.0, 0.9, 1.1), (1.0, 1.0, 1.0), "beyond the 90 % interval (1.00x [0.90, 1.10]) and does not change the step"),
])  # fmt: skip
def test_headline_never_claims_more_than_the_interval(answer, rollout, step, phrase):
    made = replace(answer("sync"), rollout_speedup=Interval(*rollout), end_to_end_speedup=Interval(*step))
    assert phrase in findings.headline(made)


@pytest.mark.parametrize(
    ("value", "text"),
    [(312.4, "312 s"), (8.4, "8.40 s"), (0.012, "12.0 ms"), (4e-5, "40.0 us"), (1234.5, "1,234 s"), (0, "0 s")],
)
def test_seconds_have_three_digits_and_a_unit(value, text):
    assert fmt.seconds(value) == text


@pytest.mark.parametrize(("before", "after", "text"),
                         [(3, 2, "1.50x"), (1, 0, "-"), (500, 2, "250x"), (1e6, 1, ">999x")])  # fmt: skip
def test_ratio(before, after, text):
    assert fmt.ratio(before, after) == text


def test_small_positive_values_never_print_as_zero():
    assert (fmt.fixed(0.004, 1), fmt.fixed(0.0, 1), fmt.percent(0.001)) == ("<0.1", "0.0", "<1 %")


HEADS = ("", "baseline", "speedup")
ROWS = [("data", Cell("0.1", "0.1", "0.2"), "-"), ("exposed generation", Cell("15.8", "12.5", "120.0"), "saves 15.8 s"),
        RULE, Row(("step", Cell("112.0", "90.0", "131.0"), Cell("1.28x", "1.09", "1.51")), strong=True)]  # fmt: skip


def test_tables_align_move_together_drop_wrap_and_may_be_ascii():
    assert table(HEADS, ROWS, Style()) == [
        "                       baseline              speedup", "  data                   0.1 [ 0.1,   0.2]       -",
        "  exposed generation    15.8 [12.5, 120.0]   saves 15.8 s", "  " + "─" * 61,
        "  step                 112.0 [90.0, 131.0]   1.28x [1.09, 1.51]",
    ]  # fmt: skip
    widths = {width: table(HEADS, ROWS, Style(width)) for width in (100, 62, 52, 40)}
    assert all(max(map(len, lines)) <= width for width, lines in widths.items())
    assert "12.5" in "".join(widths[62]) and "12.5" not in "".join(widths[52])
    assert all("[1.09, 1.51]" in lines[-1] for lines in widths.values())
    assert [line.split()[0] for line in widths[40][1:4]] == ["data", "exposed", "generation"]
    rows = [("größe", "1"), RULE, Row(("b", "2"), strong=True)]
    assert all(line.isascii() for line in table(("", "s"), rows, Style(encoding="ascii")))
    plain, colored = table(("", "s"), rows, Style()), table(("", "s"), rows, Style(color=True))
    assert [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in colored] == plain
    assert "\x1b[1m" in colored[-1] and "\x1b[1m" not in colored[1]
