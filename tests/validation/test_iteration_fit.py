"""The fit of engine parameters to measured iterations: what it recovers, what it leaves alone, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured_tables import write

from rlsim.errors import InputError
from rlsim.parameters.sets import load_engine_parameters
from rlsim.schema.engine_parameters import EngineParameters
from rlsim.validation import fit_iterations as fit
from rlsim.validation.halves import TableRecords
from rlsim.validation.iterations import validate_iterations
from rlsim.validation.table import read_table

HOST_S = 4e-3
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B")
NEEDED = ("engine", "model", "gpu", "precision", "tpot_ms", "isl", "osl")


def row(model: str, batch: int, **changes: str) -> dict[str, str]:
    given = {
        "id": f"{model}-{batch}-{len(changes)}", "source": "s", "serving_mode": "disagg", "engine": "vllm",
        "engine_version": "0.17.0", "model": model, "precision": "bf16", "kv_precision": "", "gpu": "H100",
        "decode_gpus_per_engine": "1", "tp": "1", "pp": "1", "ep": "1", "dp_attention": "0", "attn_dp": "1",
        "decode_workers": "1", "isl": "512", "osl": "128", "random_range_ratio": "", "concurrency": str(batch),
        "decode_batch_per_engine": str(batch), "est_decoding_reqs_per_engine": str(batch), "tpot_ms": "8",
        "tpot_kind": "mean", "ttft_ms": "", "spec_method": "none", "spec_k": "", "acceptance_length": "",
        "decode_step_ms_est": "", "flag": "",
    }  # fmt: skip
    return {**given, **changes}


def truth() -> EngineParameters:
    """The start with another host time of vLLM."""
    start = load_engine_parameters("start")
    families = [
        one.model_copy(update={"iteration_s": HOST_S}) if one.engine == "vllm" else one for one in start.families
    ]
    return start.model_copy(update={"families": tuple(families)})


def measured(folder: Path, rows: list[dict[str, str]]) -> Path:
    """A table whose times are those of the truth."""
    path = write(folder / "it.csv", rows)
    found = validate_iterations(TableRecords("it.csv", "", read_table(path, NEEDED)), truth())
    return write(folder / "it.csv", [{**r, "tpot_ms": str(p.predicted)} for r, p in zip(rows, found.rows, strict=True)])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [row(model, batch) for model in MODELS for batch in (1, 2, 4, 8, 16, 32)]
    return measured(tmp_path_factory.mktemp("fit"), rows)


def test_a_host_time_is_found_again_and_other_engines_keep_their_start(table: Path) -> None:
    found, start = fit.fit_iterations(table, "mine").parameters, load_engine_parameters("start")
    vllm = found.family("vllm")
    assert vllm.rows == 12 and [one.version for one in vllm.releases] == ["0.17.0"]
    assert vllm.host_s("0.17.0") == pytest.approx(HOST_S, rel=0.25)
    assert vllm.host_s("0.17.0") > 2 * start.family("vllm").iteration_s
    assert found.family("sglang").iteration_s == pytest.approx(start.family("sglang").iteration_s, rel=1e-3)
    assert found.fit.rows == 12 and found.fit.median_error < 0.03
    assert (found.name, found.families[0].drafting_rows) == ("mine", 0)


def problem(**changes: Any) -> fit._Problem:
    """Four rows of two models, exact at the start but for ``changes``."""
    points = fit.Points(
        measured_s=np.full(4, 3e-3),
        device_s=np.tile(np.array([[2e-3], [1.9e-3], [1.8e-3], [1.6e-3], [1.2e-3]]), (1, 4)),
        hop_s=np.zeros(4),
        added_s=np.zeros(4),
        sequences=np.ones(4),
        speculates=np.zeros(4),
        per_token=np.ones(4),
        family=("vllm",) * 4,
        release=("1",) * 4,
        pair=("h100 vllm",) * 2 + ("h200 vllm",) * 2,
        kind=("a", "a", "b", "b"),
    )
    return fit._Problem(replace(points, **changes), load_engine_parameters("start"))


def test_between_overlaps_seconds_are_linear() -> None:
    device = problem().points.device_at(np.array([0.0, 0.25e-6, 1.5e-6, 9e-6]))
    assert device == pytest.approx([2e-3, 1.95e-3, 1.7e-3, 1.2e-3])


def test_a_prediction_adds_device_hops_host_drafting_and_what_the_loop_adds() -> None:
    given = problem(hop_s=np.full(4, 1e-4), added_s=np.full(4, 5e-4), speculates=np.ones(4), per_token=np.full(4, 2.0))
    start = load_engine_parameters("start").family("vllm")
    hop = load_engine_parameters("start").network_hop_s / fit.HOP_S * 1e-4
    host = start.iteration_s + start.sequence_s + start.drafting_iteration_s + start.drafting_sequence_s
    assert given.predicted_s(given.x0) == pytest.approx((1.8e-3 + hop + host) / 2 + 5e-4)


def test_a_release_needs_rows_and_two_pairs_of_model_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "FEWEST_ROWS", 4)
    assert problem().releases == [("vllm", "1")]
    assert problem(kind=("a",) * 4).releases == []
    monkeypatch.setattr(fit, "FEWEST_ROWS", 5)
    assert problem().releases == []


def test_held_out_rows_are_predicted_without_their_pair() -> None:
    """Rows of one device take twice as long; what the other device's rows say of them is the start."""
    given = problem(measured_s=np.array([2.815e-3, 2.815e-3, 9e-3, 9e-3]))
    held = given.held_out()
    assert abs(held[2:]).min() > 1.0
    assert abs(held[:2]).max() > 0.01, "the slow rows pull the host time that predicts the others"


def test_a_table_of_which_nothing_can_be_priced_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "it.csv", [row("no-such-model", 1)])
    with pytest.raises(InputError, match="no row can be priced"):
        fit.fit_iterations(path)
