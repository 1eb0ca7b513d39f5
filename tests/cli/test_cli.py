"""The command line's manners: what it prints where, which exit code, and what it leaves behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import SMALL, complains

import rlsim
from rlsim.cli import main
from rlsim.cli.commands import HELP
from rlsim.errors import Infeasible, InputError

Run = Callable[..., tuple[int, str, str]]

# help and catalogues


def test_hardware_is_listed_and_written_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    given = ("--memory-gib", "48", "--memory-gb-per-s", "864", "--bf16-tflops", "362")
    listed = {line.split()[0]: line.rstrip() for line in run("hardware", "list")[1].splitlines() if line.strip()}
    assert listed["l40s"].endswith("measured tables (sglang, trtllm, vllm)") and listed["mi300x"].endswith("datasheet")
    code, out, _ = run("hardware", "new", "mine", *given)
    assert code == 0 and "hardware=mine.yaml" in out
    assert run("hardware", "show", "mine.yaml")[0] == 0
    again = run("hardware", "new", "mine", *given)
    assert again == (2, "", "rlsim: mine.yaml: exists already; nothing was written\n")


def test_version_schema_and_help_without_anything_heavy(run: Run) -> None:
    assert run("--version") == (0, f"rlsim {rlsim.__version__}\n", "")
    code, out, _ = run("schema")
    assert code == 0
    assert "cluster" in json.loads(out)["properties"]
    heavy = ("numpy", "scipy", "pandas", "pyarrow", "pydantic", "yaml", "simpy", "matplotlib", "torch")
    code = f"import sys, rlsim.cli; sys.exit(' '.join(name for name in {heavy} if name in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command", [(), ("project",), ("schema",), ("models", "show"), ("hardware", "list"), ("calibrate",)]
)
def test_help(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert out.strip().startswith("Usage: rlsim")


def test_the_examples_of_the_help_run(run: Run, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(Path(small).read_text())
    lines = [line.split("`")[1] for line in HELP.splitlines() if line.startswith("- `rlsim ")]
    examples = [line.split()[1:] for line in lines]
    assert len(examples) == 5
    for words in examples:
        if words[0] == "run":
            words[words.index("1000")] = "4"
        few = ["simulation.replications=1"] if words[0] == "project" else []
        code, _, err = run(*words, *few)
        assert code == 0, f"{words}: {err}"


@pytest.mark.parametrize(("kind", "name"), [("models", "qwen3-8b"), ("hardware", "gb200_nvl72")])
def test_catalogues_list_and_show_what_can_be_used(run: Run, small: str, tmp_path: Path, kind: str, name: str) -> None:
    code, out, _ = run(kind, "list")
    assert code == 0 and name in out.split()
    code, shown, _ = run(kind, "show", name)
    (tmp_path / "own.yaml").write_text(shown)
    assert run(kind, "show", str(tmp_path / "own.yaml")) == (0, shown, "")


def test_unknown_names_commands_and_many_faults_are_told_briefly(run: Run, small: str) -> None:
    complains(run("models", "show", "qwen3-9b"), "unknown model 'qwen3-9b'; nearest: qwen3.5-9b", "config.json")
    complains(run("hardware", "show", "gb20"), "unknown hardware profile 'gb20'; nearest: gh200, gb200_nvl72")
    for argv in (("projekt",), ("project",), ("project", "x", "--sett", "a=1"), ("project", "x", "--seed", "one")):
        code, out, err = run(*argv)
        assert (code, out) == (2, "") and err
    wrong = [word for key in "abcdefg" for word in ("--set", f"engine.extra_{key}=1")]
    code, _, err = run("project", small, *wrong)
    assert code == 2 and len(err) <= 600
    assert err.count("unknown key") <= 3 and re.search(r"\(and [4-6] more\)$", err.rstrip())


# project


@pytest.mark.parametrize(("encoding", "bar"), [("utf-8", "█"), ("latin-1", "#"), ("ascii", "#")])
@pytest.mark.parametrize("command", ["project", "compare"])
def test_output_in_any_encoding(small: str, encoding: str, bar: str, command: str) -> None:
    Path(small).write_text(SMALL.replace("name: small", "name: größe"), encoding="utf-8")
    words = [command, small, small if command == "compare" else "--full"]
    code = "from rlsim.cli import main; import sys; main(sys.argv[1:])"
    given = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "72"}
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, env=given)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(encoding)
    assert command == "compare" or (bar in shown and max(map(len, shown.splitlines())) <= 72)


def test_json_is_the_contract_and_out_gives_it_again(run: Run, small: str, tmp_path: Path) -> None:
    code, out, _ = run("project", small, "--json", "--seed", "7", "--replications", "3")
    answer = json.loads(out)
    assert code == 0
    assert (answer["schema"], answer["scenario"], answer["seed"]) == ("rlsim.projection/2", "small", 7)
    for arm in ("baseline", "candidate"):
        for quantity in (answer[arm]["step_s"], *answer[arm]["phases"].values()):
            assert quantity["low"] <= quantity["mean"] <= quantity["high"]
    assert sum(answer["provenance"].values()) == pytest.approx(1)
    assert run("project", small, "--json", "--seed", "7", "--replications", "3")[1] == out
    assert run("project", small, "--json", "--seed", "8", "--replications", "3")[1] != out
    out = tmp_path / "new" / "results"
    code, printed, _ = run("project", small, "--json", "--out", str(out))
    assert code == 0
    assert {path.name for path in out.iterdir()} == {
        *("projection.json", "phases.png", "memory.png", "timeline.json", "scenario.yaml")
    }
    assert (out / "projection.json").read_text() == printed
    assert run("project", str(out / "scenario.yaml"), "--json") == (0, printed, "")


# bad input

BAD_SETS = (("speculation.draft_length=-1",), ("cluster.num_gpus=6", "engine.tensor_parallel=3"),
            ("cluster.num_gpus=1", "engine.tensor_parallel=8"), ("model=qwen3-235b-a22b", "cluster.num_gpus=1"),
            ("simulation.seed=-1",))  # fmt: skip


@pytest.mark.parametrize("overrides", BAD_SETS, ids=" ".join)
def test_bad_settings_are_one_message(run: Run, small: str, tmp_path: Path, overrides: tuple[str, ...]) -> None:
    options = [word for override in overrides for word in ("--set", override)]
    complains(run("project", small, "--json", "--out", str(tmp_path / "out"), *options))
    assert not (tmp_path / "out").exists()


def test_files_without_a_scenario_and_keys_to_change_are_named(run: Run, tmp_path: Path, small: str) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    complains(run("project", str(tmp_path / "list.yaml"), "--json"), "list.yaml")
    complains(run("project", str(tmp_path / "absent.yaml")), "absent.yaml: no such file")
    complains(run("project", "x" * 5000), "too long")
    (tmp_path / "tab.yaml").write_text("name: x\n\tmodel: y\n")
    complains(run("project", tmp_path / "tab.yaml"), "line 2, column 1: a tab", "use spaces")
    _, _, err = run("project", "quickstart", "--set", "cluster.num_gpus=-1")
    assert err.startswith("rlsim: scenarios/quickstart.yaml with cluster.num_gpus=-1: in place of line ")
    _, _, err = run("project", small, "--set", "model=llama-3.1-70b")
    assert "raise one of these two" in err and "engine.tensor_parallel=1" in err
    shrunk = ["engine.tensor_parallel=2", "model=qwen2.5-14b", "trainer.gradient_precision=fp32"]
    _, _, err = run("project", small, *shrunk)
    assert "most of it is gradients: raise one of these" in err


REFERENCES = ("", "model", "hardware", "simulation.parameters", "speculation.draft", "workload.response_tokens.path")


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "large"])
@pytest.mark.parametrize("key", [*REFERENCES, "table"])
def test_only_regular_files(
    run: Run, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, kind: str
) -> None:
    path = tmp_path / "given.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.write_text("x" * 2000)
        for module in ("loading.scenario", "schema.messages", "evidence.tables", "workload.lengths", "files.yaml"):
            for name in ("DOCUMENT_BYTES", "TABLE_BYTES", "TRACE_BYTES"):
                monkeypatch.setattr(f"rlsim.{module}.{name}", 1000, raising=False)
    given = "/dev/zero" if kind == "device" else str(path)
    sets = ["--set", f"{key}={given}", "--set", "workload.response_tokens.kind=trace"]
    argv = ("validate", given) if key == "table" else ("project", small, *sets) if key else ("project", given)
    reason = {"device": "no regular file|must be a mapping", "pipe": "no regular file", "large": "larger than"}
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert re.search(reason.get(kind, "is a folder|no such file|unknown|expected a file"), err)


@pytest.mark.parametrize("value", ["\x1b[31mred", "\u202eabc", "a\u200bb", "x" * 5000, "[" + "'x', " * 2000, "\x85"])
@pytest.mark.parametrize("option", ["--set engine.name=", "--set loop.mode=", "--set ", "--seed ", "--"])
def test_messages_are_short_readable_lines(run: Run, small: str, value: str, option: str) -> None:
    head, space, rest = option.partition(" ")
    code, out, err = run("project", small, *([head, rest + value] if space else [head + value]))
    assert (code, out) == (2, "")
    assert len(err) <= 600 and err.count("\n") == 1
    assert err.rstrip("\n").isprintable()


@pytest.mark.parametrize("key", ["steps", "warmup_steps", "replications"])
def test_simulated_steps_are_bounded(run: Run, small: str, key: str) -> None:
    complains(run("project", small, "--set", f"simulation.{key}=2_000"), "simulated steps; at most 1,600", key)


def test_infeasible_interrupted_and_broken_runs_end(run: Run, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def infeasible(_: object, progress: object, timeline: bool) -> None:
        raise Infeasible("weights do not fit", 2.0**34, 2.0**33, "bytes")

    monkeypatch.setattr("rlsim.projection.project.project", infeasible)
    complains(run("project", small), "infeasible: weights do not fit (needed 16.0 GiB, available 8.0 GiB)")

    def interrupted(_: object, progress: object, timeline: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlsim.projection.project.project", interrupted)
    assert run("project", small) == (130, "", "")

    def bug(_: object, progress: object, timeline: bool) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("rlsim.projection.project.project", bug)
    with pytest.raises(ZeroDivisionError):
        main(["project", small])


# calibrate


@dataclass(frozen=True)
class FakeReport:
    folder: Path
    system: str = "gb200"
    backend: str = "vllm"

    def text(self) -> str:
        return f"tables in {self.folder}"


def test_calibrate_lists_and_moves_whole_tables(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_tables(system: str, backend: str, out: Path) -> FakeReport:
        (out / system / backend).mkdir(parents=True)
        (out / system / backend / "gemm.npz").write_text("rows")
        if system == "broken":
            raise InputError("no such system")
        return FakeReport(out / system / backend)

    monkeypatch.setattr("rlsim.calibration.aiconfigurator.import_tables", import_tables)
    complains(run("calibrate", "import", "aiconfigurator", "--system", "broken", "--out", str(tmp_path / "tables")))
    assert list(tmp_path.iterdir()) == []
    folder = tmp_path / "tables" / "gb200" / "vllm"
    result = run("calibrate", "import", "aiconfigurator", "--system", "gb200", "--out", str(tmp_path / "tables"))
    assert result == (0, f"tables in {folder}\n", "")
    assert (folder / "gemm.npz").read_text() == "rows"
    monkeypatch.setattr("rlsim.calibration.aiconfigurator.list_systems", lambda: [("gb200", "vllm", "0.24.0")])
    code, out, err = run("calibrate", "import", "aiconfigurator", "--list")
    assert (code, out.split(), err) == (0, ["gb200", "vllm", "0.24.0"], "")
    complains(run("calibrate", "import", "thin-air"), "aiconfigurator")
    complains(run("calibrate", "--quick"), "--device")


# overrides as words


def test_every_command_takes_words_that_override_like_set_which_wins(run: Run, small: str) -> None:
    words = run("project", small, "speculation.draft_length=2", "speculation.acceptance_length=2", "--json")
    options = ("--set", "speculation.draft_length=2", "--set", "speculation.acceptance_length=2")
    assert words == run("project", small, *options, "--json") and words[0] == 0
    both = run("project", small, "speculation.acceptance_length=2.2", "speculation.draft_length=4", *options, "--json")
    assert both[1] == words[1]
    none = json.loads(
        run(
            "project",
            small,
            "speculation.acceptance_length=null",
            "speculation.position_acceptance=[0.6,0.5,0.4]",
            "--json",
        )[1]
    )
    assert none["candidate"]["acceptance_length"]["mean"] == pytest.approx(1 + 0.6 + 0.5 + 0.4, rel=0.05)
    complains(run("project", small, "another.yaml"), "'another.yaml' is not KEY=VALUE")
    for command in (
        ("run", small),
        ("sweep", small),
        ("plan", small),
        ("improve", small),
        ("compare", small, small),
    ):
        complains(run(*command, "engine.tensor_paralel=2"), "did you mean 'engine.tensor_parallel'")


def test_an_option_given_as_a_key_is_named_as_an_option(run: Run, small: str) -> None:
    complains(
        run("check", small, "step=400", "weight_update=3", "foo=1"), "; as options: --step 400 --weight-update 3\n"
    )
    code, _, err = run("check", small, "foo=1")
    assert code == 2 and "as options" not in err
