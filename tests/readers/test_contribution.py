"""Runs that their owners give away: nothing of theirs but numbers, and nothing that cannot be."""

import json
import random
from pathlib import Path

import pytest
import yaml

from rlsim.calibration.loop_stack import LoopStacks, scenario_of
from rlsim.cli.commands import run as command
from rlsim.errors import InputError
from rlsim.evidence.compare import validate_table
from rlsim.evidence.loop.check import configurations
from rlsim.loading.scenario import load_scenario, scenario_of_text, vary
from rlsim.projection.project import project
from rlsim.readers.logs.contribution import anonymous
from rlsim.schema.scenario import Scenario

LOOP = Path(__file__).parents[1] / "evidence" / "loop" / "loop_measurements.json"
NAMES = {
    "generation_s": "timing_s/gen", "logprob_s": "timing_s/old_log_prob", "train_s": "timing_s/update_actor",
    "prepare_s": "timing_s/update_weights",
}  # fmt: skip
SECRETS = (
    "hf_Kq8sUvWxYz12", "AKIA4EXAMPLE5SECRET", "/home/jdoe/ckpt/run7", "s3://acme-rl-bucket/x",
    "gpu-node-17.acme.internal", "jane.doe@acme.example", "10.20.30.40", "acme/Secret-7B", "wandb-team-acme",
    "C:\\\\Users\\\\jdoe",
)  # fmt: skip


def log_of(scenario: Scenario, path: Path, factor: float = 1.0, word: str = "") -> Path:
    """A log of verl whose every step takes what rlsim expects, times ``factor``."""
    phases = project(scenario, timeline=False).candidate.phases
    times = {key: factor * phases[name].mean for name, key in NAMES.items()}
    records = []
    for step in range(12):
        record = {"step": step, **{key: value * (1 + 0.01 * (step % 3)) for key, value in times.items()}}
        record["timing_s/step"] = sum(value for key, value in record.items() if key != "step")
        records.append({**record, **({f"user/{word}": 1.0, "host": word} if word else {})})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def small(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    keys = {"workload": {"prompts_per_step": 16}, "simulation": {"replications": 4}}
    path.write_text(yaml.safe_dump({"extends": "quickstart", "name": "mine", **keys}))
    return path


def test_a_run_becomes_a_row_that_the_public_table_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small(tmp_path)
    log = log_of(load_scenario(run), tmp_path / "log.jsonl")
    assert not command(["contribute", str(log), str(run), "--out", str(tmp_path / "gift")])
    assert "inside the 90 % interval" in capsys.readouterr().out
    (scenario,) = (tmp_path / "gift" / "scenarios").iterdir()
    again = load_scenario(scenario)
    assert vary(again, {"simulation.replications": 4}).workload == load_scenario(run).workload
    found = validate_table(tmp_path / "gift" / "steps.csv", kind="wild")
    assert {row.id.partition(":")[2] for row in found.rows} == {"generation", "logprob", "train", "transfer", "step"}
    assert all(abs(row.predicted / row.measured - 1) < 0.1 for row in found.rows)
    assert "published" in (tmp_path / "gift" / "pull_request.md").read_text()


def test_a_run_of_the_small_loop_brings_what_was_measured_of_it_along() -> None:
    """No table of a GPU prices it: its iterations, passes and hosts are those that its machine showed."""
    stacks = LoopStacks.of(json.loads(LOOP.read_text(encoding="utf-8")))
    own = {"simulation.measured_stack.source": "jdoe's laptop", "simulation.measured_stack.name": "/home/jdoe"}
    scenario = vary(scenario_of(stacks, configurations()[0][0]), own)
    document, removed = anonymous(scenario)
    left = scenario_of_text(yaml.safe_dump({"name": "x", **document}), "what is left")
    assert "jdoe" not in str(document) and "simulation.measured_stack.source" in removed
    drawn = ("seed", "replications", "steps", "warmup_steps")
    alike = {f"simulation.{key}": getattr(scenario.simulation, key) for key in drawn}
    before, after = (project(one, timeline=False).candidate.step_s.mean for one in (scenario, vary(left, alike)))
    assert after == pytest.approx(before)


@pytest.mark.parametrize(("factor", "reason"), [(0.05, "peak"), (50.0, "is not of this scenario")])
def test_what_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, reason: str
) -> None:
    run = small(tmp_path)
    log = log_of(load_scenario(run), tmp_path / "log.jsonl", factor)
    with pytest.raises(InputError, match=reason):
        command(["contribute", str(log), str(run), "--out", str(tmp_path / "gift")])
    assert not (tmp_path / "gift").exists()


def planted(draw: random.Random, scenario: Scenario) -> tuple[Scenario, str]:
    """The scenario with a secret in some of its texts."""
    word = draw.choice(SECRETS) + f"{draw.randrange(10**6):06d}"
    texts = {
        "name": word, "question": f"for {word}", "model.name": word, "model.source": word, "hardware.name": word,
        "hardware.description": word, "assumptions": [{"text": f"as {word} says", "keys": ["workload"]}],
        "missing": [{"part": word, "step": "longer"}],
        "hardware.price_per_gpu_hour_usd": {"value": 1.0, "source": "assumed", "ref": f"contract of {word}"},
    }  # fmt: skip
    chosen = draw.sample(sorted(texts), draw.randrange(1, len(texts)))
    return vary(scenario, {key: texts[key] for key in chosen}), word


def test_names_of_files_are_no_names_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of one's own stays without a name though a file of that name would be read here."""
    monkeypatch.chdir(tmp_path)
    scenario = vary(load_scenario("quickstart"), {"hardware.name": "acme.yaml", "hardware.eager_launch_s.value": 3e-5})
    (tmp_path / "acme.yaml").write_text(yaml.safe_dump(scenario.hardware.model_dump(mode="json")))
    document, _ = anonymous(scenario)
    assert "acme" not in str(document) and document["hardware"]["name"] == "contributed"
    shipped, _ = anonymous(load_scenario("quickstart"))
    assert (shipped["hardware"], shipped["model"]) == ("h100_sxm", "Llama-3.1-8B")


def test_no_secret_survives(tmp_path: Path) -> None:
    draw, base = random.Random(0), load_scenario("quickstart", ["workload.prompts_per_step=16"])
    for _ in range(100):
        scenario, word = planted(draw, base)
        document, removed = anonymous(scenario)
        text = yaml.safe_dump({"name": "x", **document})
        assert word not in text + " ".join(removed)
        assert scenario_of_text(text, "what is left").workload == base.workload


def test_no_secret_of_the_log_or_of_paths_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "jdoe-secret"
    folder.mkdir()
    run = small(folder)
    scenario = load_scenario(run)
    for secret in ("hf_Kq8sUvWxYz12", "gpu-node-17.acme.internal"):
        log = log_of(scenario, folder / "log.jsonl", word=secret)
        assert not command(["contribute", str(log), str(run), "--out", str(tmp_path / secret)])
        capsys.readouterr()
        given = "".join(path.read_text() for path in (tmp_path / secret).rglob("*") if path.is_file())
        assert secret not in given and "jdoe" not in given and str(tmp_path) not in given
