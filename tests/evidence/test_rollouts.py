"""Measured offline throughput: what a row describes, and that the simulation's own rollout predicts it."""

from pathlib import Path

import numpy as np
import pytest
from measured_tables import write

from rlsim.costs.memory import engine_memory
from rlsim.errors import InputError
from rlsim.evidence.compare import learn, validate_table
from rlsim.evidence.engines import prepared_engine
from rlsim.evidence.iterations import decode_step_s
from rlsim.evidence.rollouts import ASSUMED_REQUESTS, run_of, simulated
from rlsim.evidence.tables import SkippedRow
from rlsim.files.reading import data_folder
from rlsim.parameters.terms import current
from rlsim.results.validation import Validation

ROLLOUT = {
    "id": "a", "engine": "trtllm", "model": "nvidia/Llama-3.3-70B-Instruct", "precision": "fp8", "gpu": "H200",
    "num_gpus": "2", "decode_gpus_per_engine": "2", "tp": "2", "isl": "1024", "osl": "1024", "num_requests": "3000",
    "tokens_per_s_per_gpu": "2582", "spec_method": "none",
}  # fmt: skip
SMALL = {
    "engine": "vllm", "model": "meta-llama/Llama-3.1-8B-Instruct", "precision": "bf16", "gpu": "H100", "num_gpus": "1",
    "decode_gpus_per_engine": "1", "tp": "1", "isl": "256", "osl": "128", "num_requests": "16",
}  # fmt: skip


def cells(**changes: str) -> dict[str, str]:
    return {**ROLLOUT, **changes}


def validated(tmp_path: Path, *rows: dict[str, str], kind: str | None = None) -> Validation:
    return validate_table(write(tmp_path / "t.csv", list(rows)), kind)


def test_requests_come_from_columns_or_notes_and_a_small_rollout_takes_its_steps(tmp_path: Path) -> None:
    found = validated(tmp_path, cells(**SMALL)).rows[0]
    run = run_of(cells(**SMALL))
    table = prepared_engine(run.setup, current()).table
    decoding_s = sum(decode_step_s(table, 16, 256 + step) for step in range(1, 128))
    whole_s = 16 * 128 / float(found.predicted or 0)
    assert decoding_s < whole_s < 1.15 * decoding_s
    # Responses of one token are prefills alone: of those much less a second than of decoded ones.
    alone = validated(tmp_path, cells(**{**SMALL, "osl": "1"})).rows[0]
    assert 0 < float(alone.predicted or 0) < float(found.predicted or 0)
    assert found.details["running_mean"] == pytest.approx(16)
    one, four = (simulated(run_of(cells(**SMALL | {"num_requests": str(16 * n), "num_gpus": str(n)})), current(), 0)
                 for n in (1, 4))  # fmt: skip
    assert four.seconds == pytest.approx(one.seconds)
    assert four.generated_tokens == 4 * one.generated_tokens
    assert run_of(cells()).requests == 3000
    assert run_of(cells(num_requests="", notes="bench, 1,500 requests at once; fixed")).requests == 1500
    assert run_of(cells(num_requests="", notes="not stated")).requests == ASSUMED_REQUESTS

    def engine(model: str) -> tuple[str, str]:
        found = run_of(cells(model=model, num_gpus="8", decode_gpus_per_engine="8", tp="8")).setup.engine
        return found.weight_precision, found.kv_precision

    assert engine("nvidia/Qwen3-235B-A22B") == ("fp8", "fp8")
    assert engine("Qwen/Qwen3-235B-A22B") == ("fp8_block", "bf16")


def test_an_engine_that_evicts_nothing_reserves_and_a_measured_rollout_narrows(tmp_path: Path) -> None:
    reserving, evicting = run_of(cells()), run_of(cells(engine="vllm", max_running_sequences="2048"))
    room = engine_memory(reserving.setup).kv_capacity_tokens / 2048
    assert reserving.setup.engine.max_running_sequences == int(room) < 2048
    assert evicting.setup.engine.max_running_sequences == 2048
    assert simulated(reserving, current(), 0).counters.preemptions == 0
    assert simulated(evicting, current(), 0).counters.preemptions > 0
    predicted = float(validated(tmp_path, cells()).rows[0].predicted or 0)
    slower = cells(tokens_per_s_per_gpu=str(0.8 * predicted))
    found = learn(write(tmp_path / "own.csv", [slower, slower | {"id": "b", "osl": "1000"}]))
    for time in found.times:
        assert time.measured_s / time.expected.mean == pytest.approx(1 / 0.8, rel=0.06)
        assert time.expected.mean < time.now.mean < time.measured_s * 1.02
        assert time.now.high / time.now.low < time.expected.high / time.expected.low


@pytest.mark.parametrize(("changes", "reason"), [
    ({"concurrency": "64"}, "closed loop"),
    ({"num_gpus": "3"}, "num_gpus 3 is no multiple"),
    ({"num_gpus": "100000000"}, "num_gpus must be at most 1,048,576"),
    ({"num_requests": "1e19"}, "num_requests must be at most 1e"),
    ({"num_requests": "1.5"}, "num_requests must be a whole number"),
    ({"num_requests": "100000"}, "more than 16,384 sequences"),
    ({"precision": "int3", "model": "openai/gpt-oss-120b"}, "precision 'int3' is not simulated"),
    ({"spec_method": "eagle3", "spec_k": "3"}, "acceptance_length is not given"),
])  # fmt: skip
def test_rows_that_are_no_rollout_say_why(changes: dict[str, str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(SkippedRow, match=reason):
        simulated(run_of(cells(**changes)), current(), 0)
    assert reason in str(validated(tmp_path, cells(**changes)).rows[0].skipped)


def test_the_flag_of_an_open_batch_objects_to_iterations_alone(tmp_path: Path) -> None:
    flagged = cells(**SMALL | {"flag": "offline_throughput_batch_unknown", "concurrency": "", "tpot_ms": ""})
    assert validated(tmp_path, flagged, kind="rollouts").score.n == 1
    assert validated(tmp_path, flagged, kind="iterations").rows[0].skipped == "flag offline_throughput_batch_unknown"
    with pytest.raises(InputError, match="is no table of rollouts: column num_requests or notes is missing"):
        validated(tmp_path, {name: cell for name, cell in cells().items() if name != "num_requests"}, kind="rollouts")


def test_published_rollouts_are_met_without_a_fit() -> None:
    found = validate_table(data_folder("calibration") / "published" / "rollouts.csv")
    assert (found.kind, found.score.n, found.skipped) == ("rollouts", 69, 0)
    known = [abs(row.error or 0) for row in found.scored if "Maverick" not in row.group and "gpt-oss" not in row.group]
    assert np.median(known) < 0.08 and np.quantile(known, 0.9) < 0.25
    four_bits = [abs(row.error or 0) for row in found.scored if row.group.startswith("gpt-oss-120b, B200")]
    assert len(four_bits) == 6 and np.median(four_bits) < 0.15
    assert (found.score.median_abs_error or 1) < 0.13
    assert (found.score.coverage or 0) >= 0.75  # 53 of 69
