"""Predictions must not move unnoticed."""

from dataclasses import replace

from regenerate import Anchor, cause, drift, predict_anchors, read_anchors

TOLERANCE = 0.005
"""Relative; two builds of the numerical libraries differ by far less."""
COMMAND = "python -m tests.golden.regenerate"


def test_predictions_stay_where_the_golden_file_has_them() -> None:
    golden = read_anchors()
    found = {anchor.name: anchor for anchor in predict_anchors()}
    assert found.keys() == golden.keys(), f"anchors were added or removed; run {COMMAND}"
    moved = [text for name, anchor in found.items() if (text := drift(golden[name], anchor, TOLERANCE))]
    assert not moved, f"{len(moved)} anchors moved; if meant, run {COMMAND} and say why\n" + "\n".join(moved)


def test_a_drift_is_told_with_old_new_and_cause() -> None:
    phases = {"data_s": 0.0, "prepare_s": 1.0, "generation_s": 10.0, "logprob_s": 2.0, "train_s": 4.0}
    old = Anchor("a", "i", "f", {"step_s": 17.0, **phases, "refit_s": 1.0, "exposed_generation_s": 10.0})
    new = replace(old, seconds={**old.seconds, "step_s": 18.0, "train_s": 5.0})
    assert drift(old, old, TOLERANCE) == ""
    assert drift(old, replace(old, seconds={**old.seconds, "step_s": 17.01}), TOLERANCE) == ""
    told = drift(old, new, TOLERANCE)
    assert told == "a: step_s 17 -> 18; cause: the code changed, most in train_s 4 -> 5"
    assert "in calibration/ changed" in cause(old, replace(new, calibration="g"))
    assert "scenario" in cause(old, replace(new, inputs="j", calibration="g"))
