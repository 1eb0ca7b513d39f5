"""Rows and fits at their edges: bounds from both sides, what a table is told to assume, scores that reward truth."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from test_iterations import point

from rlsim.costs.memory import weight_bytes
from rlsim.errors import InputError
from rlsim.evidence import Kind, acceptance, cross, iterations, trained_terms
from rlsim.evidence.engines import EXPERTS_UNSTATED, _expert_parallel, load_of
from rlsim.evidence.iterations import _extra_fields
from rlsim.evidence.tables import Table
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario
from rlsim.results.validation import ComparedRow
from rlsim.tables.profile import load_profile


def test_an_interval_score_is_best_for_the_true_quantiles() -> None:
    truth = norm.ppf((np.arange(4000) + 0.5) / 4000)
    widths = np.linspace(0.5, 3.0, 26)
    scores = [cross._interval_score(truth, np.full(4000, -w), np.full(4000, w)) for w in widths]
    # 90 % of a normal distribution lie within 1.645 deviations.
    assert widths[int(np.argmin(scores))] == pytest.approx(1.645, abs=0.1)
    assert cross._interval_score(np.zeros(1), np.array([-1.0]), np.array([2.0])) == 3.0


def test_draws_around_the_truth_score_better_than_wide_narrow_or_moved_ones() -> None:
    truth, draws = norm.ppf((np.arange(200) + 0.5) / 200), norm.ppf((np.arange(400) + 0.5) / 400)
    score = {key: cross._crps(truth, np.tile(key[0] + key[1] * draws, (200, 1)))
             for key in ((0.0, 1.0), (0.0, 0.3), (0.0, 3.0), (1.0, 1.0), (-1.0, 1.0))}  # fmt: skip
    assert min(score, key=lambda key: score[key]) == (0.0, 1.0)
    # Of a single number the score is the distance (Gneiting and Raftery, section 4.2).
    assert cross._crps(np.array([3.0]), np.full((1, 50), 1.0)) == pytest.approx(2.0)


def test_a_table_tells_what_its_rows_leave_to_be_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.__new__(Table)
    object.__setattr__(table, "rows", ())
    monkeypatch.setattr(iterations, "speculation_pairs", lambda *given: ())

    def remarks(*rows: ComparedRow) -> tuple[str, ...]:
        return tuple(_extra_fields(table, rows)["remarks"])

    plain, drafting = (
        ComparedRow(id="a", measured=1.0, predicted=1.0, details=one) for one in ({}, {"speculative": 1})
    )
    assert remarks() == () == remarks(ComparedRow(id="a", skipped="nothing"))
    assert {*remarks(plain, drafting)} - {*remarks(plain)} == {one for one in remarks(drafting) if "MTP" in one}
    assert remarks(plain) and any("MTP" in one for one in remarks(drafting))


def test_a_load_has_at_least_one_request() -> None:
    few = point(est_decoding_reqs_per_engine="0.3", decode_batch_per_engine="0.3")
    assert (load_of(few).batch, load_of(few).concurrency) == (1, 1)
    many = point(est_decoding_reqs_per_engine="2.4", decode_batch_per_engine="2.4")
    assert (load_of(many).batch, load_of(many).concurrency) == (2.4, 2)


@pytest.mark.parametrize(("card", "precision"), [("qwen3-0.6b", "bf16"), ("qwen3-32b", "bf16"),
                                                 ("llama-3.3-70b", "bf16"), ("llama-3.3-70b", "fp8"),
                                                 ("deepseek-v3", "fp8_block")])  # fmt: skip
def test_an_unstated_layout_is_the_smallest_that_holds_the_weights(card: str, precision: str) -> None:
    device = load_scenario("quickstart", ["hardware=h100_sxm"]).hardware
    found = acceptance._tensor_parallel({}, card, precision, device)
    each = weight_bytes(load_card(card), precision) / acceptance.WEIGHTS_SHARE
    room = device.memory_bytes.value
    assert found.bit_count() == 1 and each / found <= room and (found == 1 or each / (found // 2) > room)
    assert acceptance._tensor_parallel({"tp": "3"}, card, precision, device) == 3


class Line(trained_terms.TermFit):
    """One value whose errors are its distance from where no row errs; ``stuck``: no move of it helps."""

    def __init__(self, stuck: bool = False) -> None:
        self.stuck, self.asked = stuck, 0

    weights = np.ones(3)

    def _column(self, name: str) -> Any:
        return np.array([{"start": 0.0, "spread": 10.0, "low": -5.0, "high": 5.0}[name]])

    def errors(self, x: Any, framework: str = "") -> Any:
        self.asked += 1
        return np.full(3, 0.5 if self.stuck and self.asked > 1 else 0.2) - (0.0 if self.stuck else x[0])

    def slopes(self, x: Any, errors: Any) -> Any:
        return np.full((3, 1), -1.0)


def test_a_fit_ends_where_nothing_more_is_gained_and_not_before() -> None:
    told = list[str]()
    (x,), errors, _ = Line().solve(told.append)
    assert x == pytest.approx(0.2, abs=1e-3) and np.abs(errors).max() < 1e-3
    assert 1 < len(told) < trained_terms.ROUNDS
    # Losses raise the damping by themselves until it ends the fit, where it began.
    told.clear()
    (x,), errors, _ = Line(stuck=True).solve(told.append)
    assert x == 0.0 and errors[0] == 0.2 and 1 < len(told) < trained_terms.ROUNDS


def test_a_fit_needs_a_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reached(Exception):  # noqa: N818
        pass

    def reached(*given: Any) -> Any:
        raise Reached

    monkeypatch.setattr(trained_terms, "TermFit", reached)
    for rows, wanted in ((trained_terms.FEWEST_ROWS, Reached), (trained_terms.FEWEST_ROWS - 1, InputError)):
        monkeypatch.setattr(trained_terms, "usable_rows", lambda *_, n=rows: ([0] * n, [1.0] * n))
        monkeypatch.setattr(trained_terms, "kind_of", lambda path: Kind.TRAINING)
        monkeypatch.setattr(Table, "read", lambda path: None)
        with pytest.raises(wanted):
            trained_terms.fit_terms([Path("a.csv")])


@pytest.mark.parametrize(("cells", "gpus", "copies", "spread"), [
    ({"ep": "1"}, 16, 16, 16), ({"ep": "1"}, 16, 8, 1), ({"ep": "1"}, 8, 8, 1), ({}, 16, 16, 16),
    ({"ep": "4"}, 16, 16, 4), ({"ep": "1", **EXPERTS_UNSTATED}, 4, 1, 4), ({"ep": "2", **EXPERTS_UNSTATED}, 4, 1, 2),
])  # fmt: skip
def test_experts_of_copies_on_several_nodes_are_spread_over_all_gpus_where_no_row_says_more(
    cells: dict[str, str], gpus: int, copies: int, spread: int
) -> None:
    assert _expert_parallel(cells, gpus, copies, load_profile("h200_sxm")) == spread
