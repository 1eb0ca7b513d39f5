"""Budgets of calibrated predictions: what exceeds one, and that the file says all that it must."""

from types import ModuleType

import pytest
import yaml

FIGURES = {"median": 4.0, "p90": 9.0, "bias": -2.0, "coverage": 88.0, "half_width": 1.2}
BUDGET = {"median": 4.5, "p90": 10.0, "bias": 2.5, "coverage": [85.0, 95.0], "half_width": 1.25}


@pytest.fixture(scope="module")
def regression(script) -> ModuleType:
    return script("benchmarks/regression.py")


def test_figures_within_their_budgets_are_fine_and_none_without_the_other(regression: ModuleType) -> None:
    assert regression.exceeded(FIGURES, BUDGET) == []
    assert regression.judged({"a": FIGURES}, {"a": BUDGET}, True) == {"a": []}
    assert regression.exceeded(FIGURES, regression.proposed(FIGURES)) == []
    assert regression.judged({"a": FIGURES}, {}, True) == {"a": ["no budget"]}
    assert regression.judged({}, {"a": BUDGET}, True) == {"a": ["is not predicted any more"]}
    assert regression.judged({}, {"a": BUDGET}, False) == {}
    assert len(regression.exceeded({"error": 1.0}, {"bias": 2.0})) == 2


@pytest.mark.parametrize(
    ("figure", "value"), [("median", 4.6), ("p90", 10.1), ("bias", -2.6), ("coverage", 84), ("half_width", 1.3)]
)
def test_a_figure_beyond_its_budget_is_named(regression: ModuleType, figure: str, value: float) -> None:
    (reason,) = regression.exceeded({**FIGURES, figure: value}, BUDGET)
    assert figure in reason and "is not within" in reason


def test_every_budget_is_of_something_and_every_raise_has_a_reason(regression: ModuleType) -> None:
    document = yaml.safe_load(regression.BUDGETS.read_text(encoding="utf-8"))
    assert set(document) == {"raised", "budgets"}
    for entry in document["raised"]:
        assert set(entry) == {"date", "budget", "from", "to", "reason"} and len(entry["reason"]) > 20
        assert entry["budget"].rpartition(", ")[0] in document["budgets"]
    for name in (*regression.TABLES, "8B study", "235B projections", "mlperf_grpo_256", "async_128"):
        assert any(budget.startswith(f"{name}: ") for budget in document["budgets"]), name


ROW = {
    "id": "a", "flag": "", "spec_method": "none", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp4",
    "gpu": "GB200", "engine": "trtllm", "decode_gpus_per_engine": "8", "dp_attention": "1", "attn_dp": "8", "ep": "8",
    "isl": "1000", "osl": "500", "random_range_ratio": "0.8", "concurrency": "64", "est_decoding_reqs_per_engine": "60",
    "serving_mode": "disagg", "tpot_ms": "20", "decode_step_ms_est": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def peer(script) -> ModuleType:
    return script("benchmarks/peer_engine.py")


def test_questions_split_the_batch_over_attention_copies_and_scores_are_bias_median_and_p90(peer):
    question = peer.question_of(ROW)
    engine = question["engine"]
    assert (engine["tp"], engine["dp"], engine["moe_tp"], engine["moe_ep"]) == (1, 8, 1, 8)
    assert (question["batch"], question["prompt"], question["response"]) == (8, 900, 450)
    assert question["serving"] is False
    assert peer.score([-0.1, 0.2, 0.4]) == (0.2, 0.2, 0.36)


@pytest.mark.parametrize(("cells", "measured", "expected"), [
    ({}, 20.0, 5.0),
    ({"serving_mode": "agg"}, 20.0, 7.0),
    ({"serving_mode": "agg", "decode_step_ms_est": "18"}, 18.0, 10.0),
])  # fmt: skip
def test_the_quantity_that_was_measured_is_compared(peer, cells, measured, expected):
    row = ROW | cells | {"spec_method": "mtp", "spec_k": "3", "acceptance_length": "2"}
    answer = {"decode_step_ms": 10.0, "tpot_ms": 7.0}
    assert peer.peer_value(row, peer.question_of(row), answer, measured) == expected


def test_comparison_of_rows_that_both_answer(peer, monkeypatch):
    records = {name: ROW | {"id": name} for name in ("a", "b", "c")} | {"d": ROW | {"model": "someone/Else"}}
    ours = [{"id": "a", "unit": "s", "measured": 0.020, "predicted": 0.022, "skipped": None},
            {"id": "b", "unit": "ms", "measured": 20.0, "predicted": 26.0, "skipped": None},
            {"id": "c", "unit": "ms", "measured": 20.0, "predicted": None, "skipped": "no tables"}]  # fmt: skip
    answers = [{"decode_step_ms": 18.0}, {"decode_step_ms": 10.0}, {"reason": "no"}]
    monkeypatch.setattr(peer, "ask_peer", lambda python, questions: answers[: len(questions)])
    text = peer.compare(records, ours, "python")
    assert text.splitlines()[1].split() == ["all", "2", "+20.0", "20.0", "28.0", "%", "-30.0", "30.0", "46.0", "%"]
    assert any(line.startswith("plain, several nodes or trays") for line in text.splitlines())
    assert not any("one node" in line for line in text.splitlines())
    assert text.endswith("4 rows; refused: rlsim 2, AIConfigurator 2")
