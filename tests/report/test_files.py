"""The files of --out, and the keys of projection.json."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlsim.report.folder import write_out

NAMES = ["projection.json", "phases.png", "timeline.json", "scenario.yaml"]
INTERVAL = {"mean", "low", "high"}
PHASES = {"data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "refit_s", "exposed_generation_s"}
ARM = {
    *("method", "draft_length", "acceptance_length", "step_s", "phases", "tokens_per_s_per_gpu", "memory", "bounds"),
    *("staleness", "token_ages", "tokens", "sampling", "facts", "efficiency"),
}
FACTS = {
    *("replicas", "decode_iterations", "mean_batch", "mean_context_tokens", "eager_share", "prefill_iterations"),
    *("prefill_tokens", "preemptions", "peak_kv_tokens", "tokens_per_s", "iterations_per_s", "tokens_per_verification"),
}


def test_writes_the_four_files_of_the_contract(answer, tmp_path):
    made = answer("sync")
    write_out(made, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(NAMES)
    assert (tmp_path / "projection.json").read_text() == made.to_json()
    assert (tmp_path / "scenario.yaml").read_text() == made.resolved_scenario
    assert json.loads((tmp_path / "timeline.json").read_text())["otherData"]["digest"] == made.digest
    assert (tmp_path / "phases.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(("case", "more"), [("sync", {"replica_imbalance"}), ("async", set())])
def test_keys_of_the_json_are_the_contract(case, more, answer):
    whole = answer(case).as_dict()
    assert whole.keys() == {
        *("schema", "scenario", "digest", "seed", "baseline", "candidate", "rollout_speedup", "end_to_end_speedup"),
        *("provenance", "support", "measured_efficiency", "assumptions", "warnings"),
    }
    assert whole["provenance"].keys() == {"measured", "modelled", "assumed"}
    assert whole["support"].keys() == {"half_width", "nearest", "sources"}
    for nearest in whole["support"]["nearest"]:
        assert nearest.keys() == {"kind", "share", "runs"}
        assert all(run.keys() == {"id", "differences"} for run in nearest["runs"])
    for source in whole["support"]["sources"]:
        assert source.keys() == {"source", "kind", "share", "assumed", "settle", "command"}
    assert whole["rollout_speedup"].keys() == whole["end_to_end_speedup"].keys() == INTERVAL
    for arm in (whole["baseline"], whole["candidate"]):
        assert (arm.keys(), arm["phases"].keys(), arm["facts"].keys()) == (ARM, PHASES, FACTS | more)
        intervals = (arm["step_s"], arm["acceptance_length"], arm["tokens_per_s_per_gpu"], *arm["phases"].values())
        assert all(value.keys() == INTERVAL for value in intervals)
        assert all(part.keys() == {"phase", "part", "seconds", "bound", "root"} for part in arm["bounds"])
        shares = {"phase", "tokens_per_s_per_gpu", "mfu", "hfu", "bandwidth_use", "peak_flops", "precision"}
        assert all(one.keys() == shares for one in arm["efficiency"])
        assert arm["memory"].keys() == {"generation", "training"}
        assert all(use.keys() == {"parts_bytes", "total_bytes", "available_bytes"} for use in arm["memory"].values())


def test_same_projection_same_files(answer, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        write_out(answer("async"), folder)
    assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in NAMES)


def test_text_and_file_reports_import_without_matplotlib():
    code = "import sys, rlsim.report.text.projection, rlsim.report.folder; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
