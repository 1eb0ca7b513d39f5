"""Derivatives of predicted rows beside predictions with the terms moved."""

from pathlib import Path

import numpy as np
import pytest
from measured_tables import write

from research.engine_terms import Row, errors, fit, left_out, rows_of
from rlsim.evidence import Kind
from rlsim.evidence.compare import validated, with_posterior_intervals
from rlsim.evidence.engines import engine_setup, load_of, prepared_engine
from rlsim.evidence.iterations import decode_step_s
from rlsim.evidence.structure import structures
from rlsim.evidence.tables import Table, read_table
from rlsim.files.reading import data_folder
from rlsim.parameters.sets import Fitted, shipped
from rlsim.parameters.terms import current, moved, terms_of

MOVE = 0.01
ITERATION = {
    "id": "i", "engine": "vllm", "engine_version": "0.19.0", "model": "meta-llama/Llama-3.1-8B-Instruct",
    "precision": "bf16", "gpu": "h100", "decode_gpus_per_engine": "1", "isl": "1000", "osl": "1000",
    "concurrency": "16", "decode_step_ms_est": "9", "spec_method": "none", "serving_mode": "agg",
}  # fmt: skip
TRAINING = {
    "id": "t", "model": "Qwen/Qwen3-30B-A3B", "gpu": "h100", "num_gpus": "16", "precision": "bf16", "gbs": "512",
    "seq_len": "4096", "mbs": "1", "tp": "1", "pp": "1", "ep": "8", "step_time_s": "20",
    "framework": "Megatron Bridge", "release": "26.02",
}  # fmt: skip


def records(tmp_path: Path, *cells: dict[str, str]) -> Table:
    rows = read_table(write(tmp_path / "table.csv", list(cells)), ())
    return Table("table.csv", rows)


@pytest.mark.parametrize("name", ["engines/vllm/iteration_s", "engines/vllm/sequence_s", "engines/fp8_s"])
def test_slopes_of_an_iteration(name: str, tmp_path: Path) -> None:
    few = {**ITERATION, "precision": "fp8"}
    sets, table = shipped(), records(tmp_path, few, {**few, "id": "large", "concurrency": "200"})
    found = validated(Kind.ITERATIONS, table, sets).rows
    after = validated(Kind.ITERATIONS, table, moved(sets, {name: MOVE})).rows
    by_place = dict(structures(Kind.ITERATIONS, found, table, sets))
    assert list(by_place) == [0, 1]
    found_structures = list(by_place.values())
    for one, before, then in zip(found_structures, found, after, strict=True):
        expected = np.log((then.predicted or 0) / (before.predicted or 1)) / MOVE
        assert one.slopes.get(name, 0.0) == pytest.approx(expected, rel=0.05, abs=2e-3)
    assert "engine with model: llama-3.1-8b" in {group.lower() for group in found_structures[0].groups}


@pytest.mark.parametrize("drafts", [{}, {"spec_method": "eagle3", "spec_k": "3", "acceptance_length": "2.5"}])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_term_that_takes_no_part_has_no_slope(engine: str, drafts: dict[str, str], tmp_path: Path) -> None:
    # Under the posterior: deviations of groups once counted as a slope of every term, drafting terms included.
    sets, table = current(), records(tmp_path, {**ITERATION, "engine": engine, "engine_version": "", **drafts})
    load = load_of(table.rows[0].cells)
    setup = engine_setup(table.rows[0].cells, load)

    def step_s(fitted: Fitted) -> float:
        return decode_step_s(prepared_engine(setup, fitted).table, load.batch, load.context_tokens)

    ((_, one),) = structures(Kind.ITERATIONS, validated(Kind.ITERATIONS, table).rows, table, sets)
    assert sets.posterior is not None
    for name in (term.name for term in terms_of(sets) if term.name.startswith("engines/")):
        expected = np.log(step_s(moved(sets, {name: MOVE})) / step_s(sets)) / MOVE
        # Of some kernels little is left to hide: they reach their least time within the step of the differences.
        near = 2e-2 if name.endswith("overlap_s") else 2e-3
        assert one.slopes.get(name, 0.0) == pytest.approx(expected, rel=0.05, abs=near), name
        if expected == 0:
            assert name not in one.slopes
    assert any("drafting" in name for name in one.slopes) == bool(drafts)


@pytest.mark.parametrize("sets", [shipped(), current()], ids=["sets", "posterior"])
def test_slopes_of_a_training_step(sets: Fitted, tmp_path: Path) -> None:
    table = records(tmp_path, TRAINING)
    found = validated(Kind.TRAINING, table, sets).rows
    ((_, one),) = structures(Kind.TRAINING, found, table, sets)
    assert not any(other in name for name in one.slopes for other in ("torchtitan", "prime_rl", "fsdp", "nvfp4"))
    told = {name: value for name, value in one.slopes.items() if abs(value) > 0.01}
    assert told["training/moe_host_layer_s"] > 0.5
    for name, slope in told.items():
        after = validated(Kind.TRAINING, table, moved(sets, {name: MOVE})).rows[0]
        expected = np.log((after.predicted or 0) / (found[0].predicted or 1)) / MOVE
        assert slope == pytest.approx(expected, rel=0.1, abs=5e-3), name


def test_slopes_of_a_transfer_and_intervals_of_what_was_measured(tmp_path: Path) -> None:
    path = data_folder("calibration") / "published" / "refit_colocated.csv"
    sets, rows = shipped(), read_table(path, ())
    table = Table(path.name, rows)
    found = validated(Kind.TRANSFERS, table, sets).rows
    place, one = next(iter(structures(Kind.TRANSFERS, found, table, sets)))
    name = max(one.slopes, key=lambda key: abs(one.slopes[key]))
    after = validated(Kind.TRANSFERS, table, moved(sets, {name: MOVE})).rows[place]
    expected = np.log((after.predicted or 0) / (found[place].predicted or 1)) / MOVE
    assert one.slopes[name] == pytest.approx(expected, rel=0.1)
    own = f"transfers/{one.about['framework']}/"
    assert all(term.count("/") == 1 or term.startswith(own) for term in one.slopes)
    strange = {**TRAINING, "id": "new", "gpu": "b300", "framework": "torchtitan", "release": "", "fsdp": "16"}
    table = records(tmp_path, TRAINING, strange)
    found = with_posterior_intervals(validated(Kind.TRAINING, table), Kind.TRAINING, table)
    known, unknown = ((row.high or 0) / (row.low or 1) for row in found.rows)
    assert 1.1 < known < unknown
    for row in found.rows:
        assert (row.low or 0) < (row.predicted or 0) < (row.high or 0)


TERMS = {"vllm/iteration_s": 4e-4, "vllm/sequence_s": 1.5e-5, "layers/block_fp8_s": 3e-5}
CELLS = {
    "id": "i", "engine": "vllm", "engine_version": "0.19.0", "model": "Qwen/Qwen3-8B", "precision": "fp8",
    "gpu": "h100", "decode_gpus_per_engine": "1", "isl": "1000", "osl": "1000", "concurrency": "16",
    "decode_step_ms_est": "9", "spec_method": "none", "serving_mode": "agg",
}  # fmt: skip


def row(base_s: float, layers: int, sequences: int, spoiled: float = 1.0) -> Row:
    slopes = {"vllm/iteration_s": 1.0, "vllm/sequence_s": float(sequences)}
    slopes |= {"layers/block_fp8_s": float(layers)} if layers else {}
    measured_s = (base_s + sum(TERMS[name] * share for name, share in slopes.items())) * spoiled
    about = {"model": f"{layers}", "device": "d", "release": "r"}
    return Row(measured_s, base_s, slopes, about, f"{base_s} {layers} {sequences}")


def test_terms_of_iterations_are_found_and_rows_say_what_one_adds(tmp_path: Path) -> None:
    loads = [(base, layers, n) for base in (2e-3, 5e-3, 9e-3) for layers in (0, 36, 61, 94) for n in (1, 32, 200)]
    rows = [*(row(*load) for load in loads), row(4e-3, 36, 8, 9.0), row(4e-3, 61, 8, 0.2)]
    names = sorted(TERMS)
    found = fit(rows, names)
    assert found == pytest.approx([TERMS[name] for name in names], rel=0.12)
    assert np.median(np.abs(errors(rows, names, found))) < 0.02
    assert np.median(np.abs(left_out(rows, names, "model"))) < 0.03
    drafted = {"id": "d", "spec_method": "eagle3", "spec_k": "3", "acceptance_length": "2.5"}
    plain, drafting = rows_of(write(tmp_path / "t.csv", [CELLS, {**CELLS, **drafted}]))
    assert plain.slopes == {"vllm/iteration_s": 1.0, "vllm/sequence_s": 16.0, "layers/fp8_s": 36.0}
    assert plain.measured_s == pytest.approx(0.009) and plain.base_s < 0.009
    assert drafting.slopes["vllm/drafting_sequence_s"] == pytest.approx(drafting.slopes["vllm/sequence_s"])
