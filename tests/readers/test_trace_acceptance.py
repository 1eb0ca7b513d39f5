"""Acceptance by position from vLLM's counters and log lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.readers.traces.reading import read_acceptance

Command = Callable[..., tuple[int, str, str]]


def counters(drafts: float, accepted: tuple[float, ...], engine: int = 0) -> str:
    label = f'engine="{engine}",model_name="m"'
    lines = [f"vllm:spec_decode_num_drafts_total{{{label}}} {drafts}"]
    lines.append(f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {drafts * len(accepted)}")
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{{{label},position="{place}"}} {value}' for place, value in enumerate(accepted)]
    return "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.\n" + "\n".join(lines) + "\n"


def test_counters_of_engines_add_up_and_scrapes_are_subtracted() -> None:
    # P_i of gpt-oss-120b with EAGLE-3, k=3, HumanEval (vLLM pull request 32628): .73 .52 .36.
    one = read_acceptance(counters(1000, (730, 520, 360)), "m")
    assert one.position_rates == (0.73, 0.52, 0.36) and one.acceptance_length == pytest.approx(2.61)
    two = read_acceptance(counters(1000, (730, 520, 360)) + counters(1000, (530, 320, 160), engine=1), "m")
    assert two.position_rates == (0.63, 0.42, 0.26) and two.verifications == 2000
    later = read_acceptance(counters(1000, (1, 1, 1)) + counters(3000, (1461, 1041, 721)), "m")
    assert later.position_rates == (0.73, 0.52, 0.36)


def test_log_lines_weigh_by_their_verifications() -> None:
    line = (
        "INFO metrics.py: SpecDecoding metrics: Mean acceptance length: {al}, Accepted throughput: 1.0 tokens/s, "
        "Drafted throughput: 2.0 tokens/s, Accepted: {a} tokens, Drafted: {d} tokens, "
        "Per-position acceptance rate: {p}, Avg Draft acceptance rate: 50.0%\n"
    )
    text = line.format(al="2.20", a=120, d=200, p="0.800, 0.400") + line.format(
        al="1.60", a=180, d=600, p="0.400, 0.200"
    )
    found = read_acceptance(text, "log")
    assert found.position_rates == pytest.approx((0.5, 0.25)) and found.verifications == 400


def test_the_fragment_loads() -> None:
    answer = read_acceptance(counters(1000, (730, 520, 360)), "m")
    words = [word.removeprefix("--set ").strip("'") for word in answer.settings()]
    found = load_scenario("qwen8b_rl_think", [*words, "speculation.method=eagle3"]).speculation
    assert found.position_acceptance == (0.73, 0.52, 0.36) and found.draft_length == 3


def test_rates_that_rise_are_lowered_and_told() -> None:
    found = read_acceptance(counters(100, (50, 60)), "m")
    assert found.position_rates == (0.5, 0.5) and "lowered" in found.remarks[0]


@pytest.mark.parametrize(
    "text",
    [
        counters(0, (0, 0)),
        counters(10, (20, 1)),
        counters(10, tuple([1.0] * 40)),
        "vllm:spec_decode_num_drafts_total 5\n",
        "vllm:spec_decode_num_drafts_total nan\n",
        "vllm:spec_decode_num_drafts_total -5\n",
        "SpecDecoding metrics: Mean acceptance length: 2.0\n",
        "SpecDecoding metrics: Mean acceptance length: 9.0, Drafted: 4 tokens, Per-position acceptance rate: 0.5\n",
    ],
)
def test_counts_that_make_no_sense_are_one_message(text: str, run: Command, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_acceptance(text, "m")
    (tmp_path / "metrics.txt").write_text(text)
    code, out, err = run("traces", tmp_path / "metrics.txt")
    assert (code, out) == (2, "") and err.count("\n") == 1


def test_the_command_takes_metrics(run: Command, tmp_path: Path) -> None:
    (tmp_path / "metrics.txt").write_text(counters(1000, (730, 520, 360)))
    code, out, err = run("traces", tmp_path / "metrics.txt", "--out", tmp_path / "found")
    assert (code, err) == (0, "") and "position_acceptance: [0.73, 0.52, 0.36]" in out
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"fragment.yaml", "trace.json"}
