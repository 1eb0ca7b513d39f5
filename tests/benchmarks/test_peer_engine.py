"""The comparison with AIConfigurator, as far as it runs without that package."""

from types import ModuleType

import pytest

ROW = {
    "id": "a", "flag": "", "spec_method": "none", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp4",
    "gpu": "GB200", "engine": "trtllm", "decode_gpus_per_engine": "8", "dp_attention": "1", "attn_dp": "8", "ep": "8",
    "isl": "1000", "osl": "500", "random_range_ratio": "0.8", "concurrency": "64", "est_decoding_reqs_per_engine": "60",
    "serving_mode": "disagg", "tpot_ms": "20", "decode_step_ms_est": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def peer(script) -> ModuleType:
    return script("benchmarks/peer_engine.py")


def test_score(peer):
    assert peer.score([-0.1, 0.2, 0.4]) == (0.2, 0.2, 0.36)


def test_question_splits_the_batch_over_attention_copies(peer):
    question = peer.question_of(ROW)
    engine = question["engine"]
    assert (engine["tp"], engine["dp"], engine["moe_tp"], engine["moe_ep"]) == (1, 8, 1, 8)
    assert (question["batch"], question["prompt"], question["response"]) == (8, 900, 450)
    assert question["serving"] is False


@pytest.mark.parametrize(
    ("cells", "measured", "expected"),
    [
        ({}, 20.0, 5.0),
        ({"serving_mode": "agg"}, 20.0, 7.0),
        ({"serving_mode": "agg", "decode_step_ms_est": "18"}, 18.0, 10.0),
    ],
)
def test_the_quantity_that_was_measured_is_compared(peer, cells, measured, expected):
    row = ROW | cells | {"spec_method": "mtp", "spec_k": "3", "acceptance_length": "2"}
    answer = {"decode_step_ms": 10.0, "tpot_ms": 7.0}
    assert peer.peer_value(row, peer.question_of(row), answer, measured) == expected


def test_comparison_of_rows_that_both_answer(peer, monkeypatch):
    records = {name: ROW | {"id": name} for name in ("a", "b", "c")} | {"d": ROW | {"model": "someone/Else"}}
    ours = [
        {"id": "a", "unit": "s", "measured": 0.020, "predicted": 0.022, "skipped": None},
        {"id": "b", "unit": "ms", "measured": 20.0, "predicted": 26.0, "skipped": None},
        {"id": "c", "unit": "ms", "measured": 20.0, "predicted": None, "skipped": "no tables"},
    ]
    answers = [{"decode_step_ms": 18.0}, {"decode_step_ms": 10.0}, {"reason": "no"}]
    monkeypatch.setattr(peer, "ask_peer", lambda python, questions: answers[: len(questions)])
    text = peer.compare(records, ours, "python")
    assert text.splitlines()[1].split() == ["all", "2", "+20.0", "20.0", "28.0", "%", "-30.0", "30.0", "46.0", "%"]
    assert any(line.startswith("plain, several nodes or trays") for line in text.splitlines())
    assert not any("one node" in line for line in text.splitlines())
    assert text.endswith("4 rows; refused: rlsim 2, AIConfigurator 2")
