"""The terminal answer: what it says, that it fits, that columns align."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import sample

from rlsim.report import words
from rlsim.report.bounds import BAR_CELLS
from rlsim.report.text import render
from rlsim.results import Quantity

SAMPLES = [
    sample.sync_sample,
    sample.async_sample,
    sample.plain_sample,
    sample.slower_sample,
    sample.tiny_sample,
    sample.crowded_sample,
]


def line_of(text: str, label: str) -> str:
    """The first line whose label is ``label``."""
    return next(line for line in text.splitlines() if line.strip().startswith(label))


def numbers(line: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", line)]


@pytest.mark.parametrize("make", SAMPLES)
@pytest.mark.parametrize("width", [100, 72])
def test_lines_fit_the_width_and_end_without_blanks(make, width):
    lines = render(make(), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_headline_comes_first_with_both_speedups_and_intervals():
    lines = render(sample.sync_sample()).splitlines()
    first = " ".join(lines[:2])
    assert first == (
        "Speculative decoding (EAGLE-3, k=3, acceptance length 3.00) shortens the rollout 2.41x [2.35, 2.47] "
        "and the step 1.57x [1.54, 1.59] on 512 GB200."
    )


@pytest.mark.parametrize(
    ("rollout", "step", "phrase"),
    [
        ((0.7, 0.68, 0.72), (0.8, 0.78, 0.82), "slows the rollout down, speedup 0.70x [0.68, 0.72], and the step"),
        ((1.0, 0.98, 1.02), (1.0, 0.99, 1.01), "changes neither the rollout"),
        ((1.3, 1.2, 1.4), (1.01, 0.99, 1.03), "shortens the rollout 1.30x [1.20, 1.40] but does not change the step"),
        ((1.3, 1.2, 1.4), (0.9, 0.88, 0.92), "but slows the step down, speedup 0.90x [0.88, 0.92]"),
    ],
)
def test_headline_never_claims_more_than_the_interval(rollout, step, phrase):
    made = replace(sample.sync_sample(), rollout_speedup=Quantity(*rollout), end_to_end_speedup=Quantity(*step))
    assert phrase in words.headline(made)


def test_synchronous_phases_of_the_table_add_up_to_the_step():
    text = render(sample.sync_sample())
    columns = [numbers(line_of(text, name)) for name in ("data", "prepare", "generation", "log-prob", "train", "step")]
    for mean in (0, 3):
        assert sum(row[mean] for row in columns[:-1]) == pytest.approx(columns[-1][mean], abs=0.3)
    assert numbers(line_of(text, "of which refit"))[0] == 9.8
    assert line_of(text, "generation").endswith("2.41x [2.35, 2.47]")
    assert line_of(text, "step").endswith("1.57x [1.54, 1.59]")


def test_columns_align():
    lines = render(sample.sync_sample()).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Time per step")) + 2
    rows = [line for line in lines[start : start + 9] if "─" not in line]
    assert len(rows) == 8
    assert len({tuple(i for i, c in enumerate(row) if c == "[")[:2] for row in rows}) == 1
    assert len({row.rindex("x", 0, row.rindex("x") + 1) for row in rows}) == 1


def test_narrow_output_drops_intervals_but_keeps_speedups():
    text = render(sample.sync_sample(), width=60)
    assert "[374.2" not in text
    assert line_of(text, "step").split() == ["step", "381.8", "243.7", "1.57x", "[1.54,", "1.59]"]


def test_asynchronous_table_tells_exposed_generation_pace_and_ages():
    text = render(sample.async_sample())
    assert numbers(line_of(text, "exposed generation"))[0] == 8.0
    assert numbers(line_of(text, "refit pause"))[0] == 3.1
    assert line_of(text, "generation (busy)").endswith("2.41x [2.35, 2.47]")
    assert "generation sets the pace: the trainer waits 11 % of the step" in text
    assert "the trainer sets the pace: it waits 1 % of the step" in text
    assert "1 step 18 %, 2 steps 82 %" in text


def test_the_part_to_look_at_first_is_on_the_side_that_sets_the_pace():
    trainer_bound = sample.async_sample()
    generation_bound = replace(trainer_bound, candidate=replace(trainer_bound.baseline, method="ngram", draft_length=2))
    assert "Look here first: expert GEMM (train)" in render(trainer_bound)
    assert "Look here first: MoE experts (generation)" in render(generation_bound)


def test_what_the_phases_leave_of_the_step_is_shown_as_other():
    made = sample.sync_sample()
    longer = replace(made, candidate=replace(made.candidate, step_s=sample.quantity(made.candidate.step_s.mean + 20.0)))
    assert numbers(line_of(render(longer), "other")) == pytest.approx([0.0, 20.0], abs=0.06)
    assert not any(line.strip().startswith("other") for line in render(made).splitlines())


def test_without_speculation_there_is_one_column_and_a_hint():
    text = render(sample.plain_sample())
    assert text.startswith("No speculative decoding is configured: a step takes 382 s [374 s, 389 s] on 8 H100 SXM.")
    assert "set speculation.method" in text
    assert "candidate  " not in text
    assert line_of(text, "generation").endswith("62 %")


def test_memory_parts_total_and_difference_to_the_baseline():
    text = render(sample.sync_sample())
    assert "142.8 of 165.9 (86 %), baseline 141.5" in text
    assert "KV cache 104.0, weights 29.4, activations 6.1, CUDA graphs 2.0, draft model 1.3" in text
    assert line_of(text, "training").count("█") == round(24 * 148.3 / 184.4)


def test_bounds_name_largest_parts_and_sum_up_the_others():
    text = render(sample.sync_sample())
    row = line_of(text, "attention over the cache")
    assert row.split()[-5:] == ["measured", "63.72", "26.44", "27", "%"]
    assert numbers(line_of(text, "2 smaller parts"))[1:] == [18.88, 7.83, 8]
    assert "data: driver" in text


def test_provenance_bar_shows_every_root_in_proportion():
    bar = next(line for line in render(sample.sync_sample()).splitlines() if "measured 64 %" in line).split()[0]
    assert len(bar) == BAR_CELLS
    assert [bar.count(glyph) for glyph in "█▓░"] == [26, 10, 4]
    sliver = replace(sample.sync_sample(), provenance={"measured": 0.998, "modelled": 0.0, "assumed": 0.002})
    bar = next(line for line in render(sliver).splitlines() if "assumed <1 %" in line).split()[0]
    assert [bar.count(glyph) for glyph in "█▓░"] == [39, 0, 1]


def test_facts_have_labels_and_dashes():
    made = sample.sync_sample()
    facts = {"tokens_per_s": 31_808.0, "iterations_per_s": 131.9, "preemptions": 12345.0}
    text = render(replace(made, candidate=replace(made.candidate, facts=facts)))
    assert line_of(text, "generated tokens per second").split()[-2:] == ["-", "31,808"]
    assert line_of(text, "iterations per second").split()[-1] == "131.9"
    assert line_of(text, "preemptions").split()[-1] == "12,345"
    assert "(s)" not in text


def test_assumptions_are_numbered_and_hang():
    lines = render(sample.sync_sample()).splitlines()
    first = lines.index("Assumptions") + 1
    assert lines[first].startswith("  1. workload.group_correlation = 0.3")
    assert lines[first + 1].startswith("     one prompt")
    assert lines[lines.index("Warnings") + 1].startswith("  1. verification batches")


def test_small_positive_values_never_print_as_zero():
    assert "<0.1" in line_of(render(sample.tiny_sample()), "prepare")
    assert words.fixed(0.0, 1) == "0.0"
    assert words.percent(0.001) == "<1 %"


def test_color_only_adds_escapes():
    plain, colored = render(sample.sync_sample()), render(sample.sync_sample(), color=True)
    assert colored.startswith("\x1b[1m")
    assert [line.rstrip() for line in re.sub(r"\x1b\[\d*m", "", colored).splitlines()] == plain.splitlines()


def test_ascii_output_is_ascii():
    assert render(sample.async_sample(), unicode=False).isascii()


@pytest.mark.parametrize(
    ("value", "text"),
    [(312.4, "312 s"), (8.4, "8.40 s"), (0.012, "12.0 ms"), (4e-5, "40.0 us"), (1234.5, "1,234 s"), (0, "0 s")],
)
def test_seconds_have_three_digits_and_a_unit(value, text):
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("before", "after", "text"), [(3, 2, "1.50x"), (1, 0, "-"), (500, 2, "250x"), (1e6, 1, ">999x")]
)
def test_ratio(before, after, text):
    assert words.ratio(before, after) == text
