"""Terms of engines found in iterations that have them."""

from pathlib import Path

import numpy as np
import pytest
from measured_tables import write

from research.engine_terms import Row, errors, fit, left_out, rows_of

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


def test_the_terms_of_iterations_are_found_whatever_a_few_rows_say() -> None:
    loads = [(base, layers, n) for base in (2e-3, 5e-3, 9e-3) for layers in (0, 36, 61, 94) for n in (1, 32, 200)]
    rows = [*(row(*load) for load in loads), row(4e-3, 36, 8, 9.0), row(4e-3, 61, 8, 0.2)]
    names = sorted(TERMS)
    found = fit(rows, names)
    assert found == pytest.approx([TERMS[name] for name in names], rel=0.12)
    assert np.median(np.abs(errors(rows, names, found))) < 0.02
    assert np.median(np.abs(left_out(rows, names, "model"))) < 0.03


def test_rows_say_what_a_term_adds_to_them(tmp_path: Path) -> None:
    drafted = {"id": "d", "spec_method": "eagle3", "spec_k": "3", "acceptance_length": "2.5"}
    plain, drafting = rows_of(write(tmp_path / "t.csv", [CELLS, {**CELLS, **drafted}]))
    assert plain.slopes == {"vllm/iteration_s": 1.0, "vllm/sequence_s": 16.0, "layers/fp8_s": 36.0}
    assert plain.measured_s == pytest.approx(0.009) and plain.base_s < 0.009
    assert drafting.slopes["vllm/drafting_sequence_s"] == pytest.approx(drafting.slopes["vllm/sequence_s"])
