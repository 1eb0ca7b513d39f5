"""Measured iterations: which engine and load a row describes, and what it is compared with."""

import json
from pathlib import Path

import numpy as np
import pytest
from measured_tables import write

from rlsim.evidence.compare import validate_table
from rlsim.evidence.engines import Load, engine_setup, load_of, prepared_engine
from rlsim.evidence.iterations import decode_step_s, drawn_requests, speculation_pairs
from rlsim.evidence.tables import SkippedRow
from rlsim.parameters.terms import current
from rlsim.results.validation import ComparedRow, Validation
from rlsim.schema.scenario import Scenario
from rlsim.simulation.closed_loop import closed_loop

POINT = {
    "id": "point", "source": "s", "serving_mode": "disagg", "engine": "vllm", "engine_version": "0.18.0",
    "model": "meta-llama/Llama-3.1-8B-Instruct", "precision": "bf16", "kv_precision": "", "gpu": "H100",
    "decode_gpus_per_engine": "1", "tp": "1", "pp": "1", "ep": "1", "dp_attention": "0", "attn_dp": "1",
    "decode_workers": "1", "isl": "512", "osl": "128", "random_range_ratio": "", "concurrency": "8",
    "decode_batch_per_engine": "8", "est_decoding_reqs_per_engine": "7.5", "tpot_ms": "8", "tpot_kind": "mean",
    "ttft_ms": "40", "spec_method": "none", "spec_k": "", "acceptance_length": "", "decode_step_ms_est": "", "flag": "",
}  # fmt: skip
"""A point of disaggregated serving without speculation."""


def point(**changes: str) -> dict[str, str]:
    return {**POINT, **changes}


def setup_of(**changes: str) -> Scenario:
    cells = point(**changes)
    return engine_setup(cells, load_of(cells))


def validated(tmp_path: Path, *rows: dict[str, str], seed: int = 0) -> Validation:
    return validate_table(write(tmp_path / "t.csv", list(rows)), seed=seed)


def test_loads_have_batch_lengths_and_interval_of_what_a_row_says() -> None:
    assert load_of(point()).batch == 7.5
    assert load_of(point(est_decoding_reqs_per_engine="")).batch == 8
    assert load_of(point(est_decoding_reqs_per_engine="", decode_batch_per_engine="", decode_workers="2")).batch == 4
    assert load_of(point(est_decoding_reqs_per_engine="0.3")).batch == 1
    assert load_of(point(decode_batch_per_engine="2.67")).concurrency == 3
    with pytest.raises(SkippedRow, match="neither a batch nor a concurrency"):
        load_of(point(est_decoding_reqs_per_engine="", decode_batch_per_engine="", concurrency=""))
    # 16 GPUs emit 0.2 x 500 x 16 = 1,600 tokens/s at 20 ms each: 32 requests decode, 16 on each worker.
    cells = point(
        est_decoding_reqs_per_engine="", isl="400", osl="100", total_tokens_per_s_per_gpu="500", num_gpus="16",
        tpot_ms="20", decode_workers="2", decode_batch_per_engine="64", concurrency="128",
    )  # fmt: skip
    assert load_of(cells).batch == pytest.approx(16)
    assert load_of({**cells, "decode_batch_per_engine": "9"}).batch == 9
    assert load_of({**cells, "total_tokens_per_s_per_gpu": ""}).batch == 64
    assert load_of({**cells, "serving_mode": "agg"}).batch == 64
    recipe = {"engine": "sglang", "model": "deepseek-ai/DeepSeek-R1", "gpu": "B200", "source": "someone/InferenceX-app"}
    assert [load_of(point(**recipe, concurrency=f"{n}")).receive_interval for n in (4, 16, 64)] == [10, 30, 30]
    other = {"engine": "vllm", "gpu": "H200", "source": "sgl-project/sgl-cookbook", "dp_attention": "1"}
    assert {load_of(point(**{**recipe, name: cell})).receive_interval for name, cell in other.items()} == {1}
    assert load_of(point(scheduler_recv_interval="7")).receive_interval == 7
    drawn = load_of(point(isl="499.66", osl="505.3", serving_mode="agg"))
    assert (drawn.prompt_tokens, drawn.response_tokens, drawn.shortest) == (1000, 1010, 0.0)
    assert drawn.mean_share * drawn.prompt_tokens == pytest.approx(499.66, rel=0.01)
    stated = load_of(point(isl="499.66", osl="505.3", random_range_ratio="0.8"))
    assert (stated.prompt_tokens, stated.shortest) == (500, 0.8)


@pytest.mark.parametrize(("changes", "copies"), [
    ({}, 1),
    ({"dp_attention": "1", "tp": "8", "attn_dp": "8"}, 8),
    ({"dp_attention": "1", "tp": "1", "attn_dp": "8"}, 8),
    ({"dp_attention": "1", "tp": "1", "attn_dp": ""}, 8),
    ({"dp_attention": "1", "tp": "2", "attn_dp": "4"}, 4),
])  # fmt: skip
def test_attention_copies(changes: dict[str, str], copies: int) -> None:
    setup = setup_of(decode_gpus_per_engine="8", model="deepseek-ai/DeepSeek-R1", **changes)
    assert (setup.engine.tensor_parallel, setup.engine.attention_data_parallel) == (8, copies)


@pytest.mark.parametrize(("gpu", "precision", "told", "cached"), [
    ("B200", "fp4", "", "fp8"), ("B200", "bf16", "", "bf16"), ("H100", "fp8", "", "bf16"),
    ("H100", "fp8", "fp8 (recipe)", "fp8"), ("B200", "fp4", "bf16", "bf16"),
])  # fmt: skip
def test_the_cache_of_quantised_checkpoints_is_fp8_on_blackwell_unless_told(gpu, precision, told, cached) -> None:
    assert setup_of(gpu=gpu, precision=precision, kv_precision=told).engine.kv_precision == cached


@pytest.mark.parametrize(("changes", "reason"), [
    ({"spec_method": ""}, "unknown whether it speculated"),
    ({"spec_method": "mtp"}, "spec_k of a speculating engine is not given"),
    ({"spec_method": "medusa", "spec_k": "3"}, "spec_method 'medusa' is not simulated"),
    ({"spec_method": "mtp", "spec_k": "2", "acceptance_length": "3.5"}, "not within 1 and spec_k + 1"),
    ({"precision": ""}, "precision is not given"),
    ({"precision": "int2"}, "precision 'int2' is not simulated"),
    ({"model": "someone/New-1T"}, "no model card for 'someone/New-1T'"),
    ({"gpu": "MI250X"}, "no hardware profile for 'MI250X'"),
    ({"engine": "lmdeploy"}, "engine 'lmdeploy' is not simulated"),
    ({"pp": "2"}, "pipeline parallel serving"),
    ({"ep": "3"}, "ep 3 does not divide"),
    ({"dp_attention": "1", "decode_gpus_per_engine": "8", "attn_dp": "2"}, "attn_dp 2 contradicts"),
    ({"osl": "x"}, "osl is not a number"),
    ({"isl": "2e9"}, "tokens of context"),
    ({"isl": "1e14", "osl": "1e15"}, "tokens of context"),
    ({"isl": "1e300"}, "isl must be at most 1e"),
    ({"isl": "1e6", "decode_batch_per_engine": "9000"}, "prompt tokens at once"),
    ({"random_range_ratio": "1.5"}, "random_range_ratio"),
    ({"flag": "far_above_floor"}, "flag far_above_floor"),
    ({"tpot_ms": ""}, "neither decode_step_ms_est nor tpot_ms"),
    ({"decode_gpus_per_engine": "64", "tp": "64"}, "tensor_parallel"),
    ({"model": "deepseek-ai/DeepSeek-R1", "decode_gpus_per_engine": "2"}, "infeasible"),
    ({"precision": "fp4"}, "nvfp4 is not supported by h100_sxm"),
])  # fmt: skip
def test_what_is_not_simulated_is_skipped_with_its_reason(changes: dict[str, str], reason: str, tmp_path: Path) -> None:
    found = validated(tmp_path, point(id="good"), point(**changes))
    assert [row.id for row in found.rows] == ["good", "point"]
    assert found.rows[0].skipped is None
    assert reason in str(found.rows[1].skipped)
    assert "\n" not in str(found.rows[1].skipped)


def test_an_id_counts_once_and_rows_presumed_to_be_plain_not_beside_a_copy_that_speculates(tmp_path: Path) -> None:
    found = validated(tmp_path, point(flag="parallelism_corrected"), point(), point(id="other"))
    assert [row.skipped for row in found.rows] == [None, "the id appears before, in line 2", None]
    drafts = {"spec_method": "mtp", "spec_k": "2", "acceptance_length": "2.1"}
    told = point(id="told", tpot_ms="8.0041", ttft_ms="40.02", spec_basis="inferred", **drafts)
    copies = [point(id=f"copy {ms}", tpot_ms=ms, spec_basis="presumed") for ms in ("8", "8.1")]
    found = validated(tmp_path, told, *copies, point(id="stated", spec_basis="stated"))
    assert [bool(row.skipped) for row in found.rows[1:]] == [True, False, False]
    assert "presumed" in str(found.rows[1].skipped)


def test_a_decode_worker_is_one_iteration_and_aggregate_serving_pays_for_prefills(tmp_path: Path) -> None:
    row = validated(tmp_path, point()).rows[0]
    low, high = (decode_step_s(prepared_engine(setup_of(), current()).table, n, 512 + 64) for n in (7, 8))
    assert row.predicted == pytest.approx(1e3 * (low + high) / 2, rel=1e-9)
    assert (row.unit, row.measured, row.details["quantity"]) == ("ms", 8.0, "decode step")
    assert row.details["ttft_predicted_ms"] is None
    long = point(serving_mode="agg", isl="4096", est_decoding_reqs_per_engine="8")
    served, bare = validated(tmp_path, long, {**long, "id": "bare", "serving_mode": "disagg"}).rows
    # A request decodes beside seven prefills of the others and beside its own first iteration.
    assert served.predicted > 1.2 * bare.predicted
    table, asked = prepared_engine(setup_of(**long), current()).table, drawn_requests(load_of(long), 0, True)[0]
    engine_ms = 1e3 * sum(one.ttft_s for one in closed_loop(table, asked, 8, 80)) / 80
    assert served.details["ttft_predicted_ms"] == pytest.approx(engine_ms + 4.65 * bare.predicted + 9.45e-3 * 4096)


def test_equal_lengths_do_not_run_in_lockstep_where_prefill_stands_alone() -> None:
    load = Load(64.0, 64, 1000, 100, 1.0, 1.0)
    requests, measured = drawn_requests(load, seed=0, lockstep=False)
    assert {one.response_tokens for one in requests[64:]} == {100}
    wave, all_of_it = drawn_requests(load, seed=0, lockstep=True)
    assert {one.response_tokens for one in wave} == {100}
    assert (len(wave), all_of_it) == (640, range(640))
    # Evenly anywhere in their responses: the mean of 64 uniform shares is within four standard errors of a half.
    left = [one.response_tokens for one in requests[: measured.start]]
    assert abs(sum(left) / 64 - 50) < 4 * 100 / (12 * 64) ** 0.5
    assert 1 <= min(left) < 20 and 80 < max(left) <= 100
    # An engine that prefills alone pays in its decoding for every prompt that arrives; in lockstep none ever did.
    table = prepared_engine(setup_of(engine="sglang", engine_version="0.5.9"), current()).table
    served = closed_loop(table, requests, 64, measured.stop)[measured.start :]
    together = closed_loop(table, wave, 64, measured.stop)[measured.start :]
    assert np.mean([one.tpot_s for one in served]) > 1.1 * np.mean([one.tpot_s for one in together])


@pytest.mark.parametrize(("cells", "quantity"), [
    ({}, "time per output token"),
    ({"concurrency": "4"}, "decode step"),
    ({"stream_interval_est": "1"}, "decode step"),
    ({"serving_mode": "disagg"}, "decode step"),
    ({"tpot_ms": ""}, "decode step"),
])  # fmt: skip
def test_windows_with_prefills_tell_no_decode_step(tmp_path: Path, cells: dict[str, str], quantity: str) -> None:
    served = {"serving_mode": "agg", "concurrency": "64", "osl": "1024", "stream_interval_est": "30"}
    cells = point(**{**served, "decode_step_ms_est": "20", "tpot_ms": "30", **cells})
    (row,) = validated(tmp_path, cells).rows
    assert row.details["quantity"] == quantity
    assert row.measured == (20 if quantity == "decode step" else 30)


def test_speculation_divides_an_iteration_by_its_gain_and_rows_are_scored_by_place_and_batch(tmp_path: Path) -> None:
    both = {"spec_method": "mtp", "spec_k": "1", "model": "DeepSeek-R1", "decode_gpus_per_engine": "8", "gpu": "H200"}
    cells = point(**both, acceptance_length="1.6", precision="fp8")
    found = validated(tmp_path, cells, point(**{**cells, "id": "step", "decode_step_ms_est": "20"}))
    row, step = found.rows
    assert row.predicted == pytest.approx(float(step.predicted or 0) / 1.6)
    assert row.group == "DeepSeek-R1, H200, vllm, speculative"
    assert row.cuts == ("speculative rows",)
    wide = point(id="wide", model="DeepSeek-R1", gpu="GB200", precision="fp8", decode_gpus_per_engine="8", tp="8")
    found = validated(tmp_path, point(), point(id="many", est_decoding_reqs_per_engine="64"), wide)
    assert found.groups["Llama-3.1-8B-Instruct, H100, vllm"].n == 2
    assert {name: score.n for name, score in found.cuts.items()} == {
        "plain rows": 3, "plain, decode step": 3, "plain, engine in one node or tray": 2,
        "plain, engine in one node or tray, running batch from 64 on": 1,
        "plain, engine in one node or tray, running batch up to 8": 1, "plain, engine in several nodes or trays": 1,
        "plain, running batch from 64 on": 1, "plain, running batch up to 8": 2,
    }  # fmt: skip


def test_pairs_are_the_same_engine_and_load_of_the_same_source_or_the_nearest_release(tmp_path: Path) -> None:
    def measured(name: str, tpot: float, predicted: float, speculative: bool = False) -> ComparedRow:
        return ComparedRow(
            id=name, group="g", unit="ms", measured=tpot, predicted=predicted,
            details={"speculative": speculative, "tpot_measured_ms": tpot, "tpot_predicted_ms": predicted},
        )  # fmt: skip

    plain = [("far", "s", "0.11.0"), ("near", "s", "0.18.1"), ("foreign", "other", "0.18.0"), ("busy", "s", "0.18.0")]
    rows = [measured(name, 10.0, 12.0) for name, _, _ in plain]
    cells = [point(id=name, source=source, engine_version=version) for name, source, version in plain]
    cells[3]["concurrency"] = "9"
    rows += [measured("fast", 5.0, 8.0, True), measured("even", 9.9, 15.0, True), measured("alone", 5.0, 5.0, True)]
    cells += [point(id="fast"), point(id="even"), point(id="alone", isl="7")]
    found = speculation_pairs(rows, cells)
    assert [(pair.id, pair.plain_id) for pair in found.pairs] == [("fast", "near"), ("even", "near")]
    assert [pair.measured for pair in found.pairs] == pytest.approx([2.0, 10 / 9.9])
    assert [pair.predicted for pair in found.pairs] == pytest.approx([1.5, 0.8])
    document = json.loads(json.dumps(found.model_dump(mode="json")))
    # The pair next to 1 is not asked for its sign.
    assert (document["n"], document["clear"], document["right_sign_share"]) == (2, 1, 1.0)
    assert document["median_abs_error"] == pytest.approx((0.25 + 1 - 0.8 * 0.99) / 2)
    assert speculation_pairs([], []).n == 0
