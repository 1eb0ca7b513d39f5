"""The headline about speed-ups that round to 1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sample

from rlsim.report import words
from rlsim.results import Quantity


@pytest.mark.parametrize(
    ("rollout", "step", "phrase"),
    [
        ((1.3, 1.2, 1.4), (0.998, 0.9971, 0.9989), "but does not change the step (1.00x [1.00, 1.00])"),
        ((1.3, 1.2, 1.4), (1.002, 1.001, 1.003), "but does not change the step (1.00x [1.00, 1.00])"),
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), "changes neither the rollout (1.00x [1.00, 1.00]) nor the step"),
        ((1.0, 0.9, 1.1), (1.0, 1.0, 1.0), "does not change the rollout beyond the 90 % interval"),
        ((1.0, 0.9, 1.1), (1.0, 1.0, 1.0), "(1.00x [0.90, 1.10]) and does not change the step (1.00x"),
        ((1.3, 1.2, 1.4), (0.99, 0.985, 0.993), "but slows the step down, speedup 0.99x"),
    ],
)
def test_a_speedup_within_half_a_percent_changes_nothing(rollout, step, phrase):
    made = replace(sample.sync_sample(), rollout_speedup=Quantity(*rollout), end_to_end_speedup=Quantity(*step))
    assert phrase in words.headline(made)
