"""verl's six runs under one scenario: what the benchmark prints."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "verl_runs.py"


def test_steps_and_speedups_are_within_10_percent_and_phases_within_27():
    run = subprocess.run([sys.executable, SCRIPT, "--json"], check=True, capture_output=True, text=True)
    found = json.loads(run.stdout)
    speedups = found.pop("speedups")
    assert set(found) == {f"{kind}_{gpus}" for kind in ("colocated", "async") for gpus in (32, 64, 128)}
    for name, row in found.items():
        assert abs(row["predicted_s"] / row["measured_s"] - 1) < 0.1, name
        assert set(row["phases"]) == ({"generation_s", "logprob_s", "train_s"} if "colo" in name else {"train_s"})
        for phase, pair in row["phases"].items():
            assert abs(pair["predicted_s"] / pair["measured_s"] - 1) < 0.27, (name, phase)
    for gpus, pair in speedups.items():
        assert abs(pair["predicted"] / pair["measured"] - 1) < 0.1, gpus
