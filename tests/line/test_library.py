"""The library from a notebook: mappings in, text and tables out, errors in our words."""

import io
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import rlsim
from rlsim.errors import InputError
from rlsim.evidence.tables import SkippedRow, length_tokens, number
from rlsim.files import archives
from rlsim.files import kernel as build
from rlsim.files.journal import Journal
from rlsim.loading.scenario import load_scenario, scenario_of_text, vary
from rlsim.planning.compare import compare
from rlsim.planning.new import Answers, with_layout
from rlsim.projection.project import project
from rlsim.projection.summary import iteration_tokens
from rlsim.projection.variant import simulate_variant
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.report.text.projection import render_brief
from rlsim.results.answer import Answer

SHORT = {"simulation.replications": 1, "cluster.num_gpus": 16}


@pytest.fixture(scope="module")
def scenario() -> rlsim.Scenario:
    return rlsim.load_scenario("quickstart", SHORT)


def test_a_scenario_is_loaded_from_whatever_holds_it(tmp_path: Path, scenario: rlsim.Scenario) -> None:
    named = rlsim.load_scenario("quickstart", [f"{key}={value}" for key, value in SHORT.items()])
    assert named == scenario
    mapping = {
        "extends": "quickstart", "question": scenario.question, "name": "quickstart", "cluster": {"num_gpus": 16},
    }  # fmt: skip
    assert rlsim.load_scenario(mapping, {"simulation.replications": 1}) == scenario
    path = tmp_path / "mine.yaml"
    path.write_text("extends: quickstart\nname: quickstart\n")
    assert rlsim.load_scenario(path, SHORT) == scenario
    assert rlsim.load_scenario("quickstart", "k=2").speculation.draft_length == 2
    with pytest.raises(rlsim.InputError, match=r"^the scenario: .*unknown key 'modle'; did you mean 'model'"):
        rlsim.load_scenario({"extends": "quickstart", "modle": "qwen3-8b"})


def test_a_sweep_takes_a_mapping_and_a_scenario_by_hand_is_refused_in_our_words(scenario: rlsim.Scenario) -> None:
    asked = {"k": [0, 2], "hardware": ("h100_sxm", "mi300x")}
    by_mapping, by_text = rlsim.sweep(scenario, asked), rlsim.sweep(scenario, ["k=0,2", "hardware=h100_sxm,mi300x"])
    assert by_mapping == by_text and len(by_mapping.done) == 4
    assert rlsim.sweep(scenario, {"k": "0:4:2"}).axes == {"k": ("0", "2", "4")}
    with pytest.raises(rlsim.InputError, match="values of a sweep are"):
        rlsim.sweep(scenario, {"k": [object()]})
    with pytest.raises(rlsim.InputError, match="k"):
        rlsim.sweep(scenario, {"k": []})
    with pytest.raises(rlsim.InputError, match=r"model: must be a mapping.*got 'qwen3-8b'|are required") as error:
        rlsim.Scenario(model="qwen3-8b")  # type: ignore[call-arg,arg-type]
    assert "load_scenario" in str(error.value) and "\n" not in str(error.value) and "pydantic" not in str(error.value)


def test_every_answer_is_text_and_table(scenario: rlsim.Scenario) -> None:
    wanted = rlsim.Wanted(rlsim.Answers("qwen3-1.7b", "h100_sxm", 8, (8, 4), 500))
    improved = rlsim.improve(scenario)
    assert all((improved.moves, improved.idle, improved.headroom, improved.inputs))
    assert len(str(improved).splitlines()) <= 40
    answers: list[Answer | None] = [
        rlsim.project(scenario), rlsim.run(scenario, steps=2), rlsim.sweep(scenario, {"k": [0, 2]}),
        rlsim.compare(scenario, rlsim.vary(scenario, {"k": 0})), rlsim.check(scenario, {"step": 60.0, "train": 20.0}),
        rlsim.plan(scenario), rlsim.size(wanted, ["h100_sxm"]), improved.moves, improved.idle, improved.headroom,
        improved.inputs,
    ]  # fmt: skip
    assert str(answers[0]) == render_brief(answers[0])  # type: ignore[arg-type]
    for answer in filter(None, answers):
        name, text, frame = type(answer).__name__, str(answer), answer.to_frame()
        assert text.strip() and "Interval(" not in text and "schema_=" not in text, name
        assert len(text.splitlines()) <= 40, name
        full = answer.text(full=True)
        assert full == text or ("more lines (--full" in text and len(full.splitlines()) > 40), name
        assert len(frame) > 0 and len(frame.columns) > 1, name
        page = answer._repr_html_()
        assert page.startswith("<table") or "<table" in page, name
    changed = replace(wanted, deadline_s=-1.0)
    with pytest.raises(rlsim.InputError, match="must be above 0"):
        rlsim.size(changed, ["h100_sxm"])


def test_all_public_names_are_there_and_documented_and_no_others() -> None:
    assert rlsim.__all__ == sorted(rlsim.__all__)
    assert set(rlsim.__all__) == {
        *("Infeasible", "InputError", "RlsimError", "Scenario", "load_scenario", "project", "vary"),
        *("Answers", "Wanted", "check", "enough_places", "improve", "largest_that_fit", "live", "preflight", "size"),
        *("live_report", "trainer_callback"),
        *("Objective", "SearchLimits", "cliffs", "compare", "draft_lengths", "plan", "run", "sweep"),
    }
    for name in rlsim.__all__:
        assert getattr(rlsim, name).__doc__, name
    assert {*rlsim.__all__, "__version__"} == set(dir(rlsim))
    with pytest.raises(AttributeError, match="has no attribute 'projekt'"):
        rlsim.projekt  # noqa: B018
    assert rlsim.__version__ == version("rlsim")


SMALL = ("workload.prompts_per_step=16", "simulation.replications=1")


@pytest.mark.parametrize(("short", "long"), [
    ("workload.response_tokens=900", "workload.response_tokens.mean_tokens=900"),
    ("workload.prompt_tokens=50", "workload.prompt_tokens.tokens=50"),
    ("hardware.price_per_gpu_hour_usd=2", "hardware.price_per_gpu_hour_usd.value=2"),
    ("speculation=none", "speculation.method=none"),
])  # fmt: skip
def test_a_number_that_can_mean_one_key_only_is_taken_for_it(short: str, long: str) -> None:
    found, meant = (load_scenario("quickstart", [word, "question=why"]) for word in (short, long))
    assert found == meant == vary(load_scenario("quickstart"), short, "question=why")
    with pytest.raises(InputError, match="must be a mapping of keys to values"):
        load_scenario("quickstart", ["engine=4"])


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [("avg_seq_len", "1,610.1", 1610.1), ("gpu_memory_utilization", "86.6%", 0.866), ("avg_seq_len", " n/a ", 7.0)],
)
def test_numbers_are_read_as_people_write_them(column: str, cell: str, value: float) -> None:
    assert number({column: cell}, column, 7.0) == pytest.approx(value)


def test_mean_lengths_are_lengths_and_percentages_are_shares() -> None:
    assert length_tokens({"isl": "610.1"}, "isl") == 610
    for cells in ({"avg_seq_len": "86.6%"}, {"avg_seq_len": "1,61"}, {"avg_seq_len": "-"}):
        with pytest.raises(SkippedRow, match="avg_seq_len"):
            number(cells, "avg_seq_len")


@pytest.mark.parametrize("content", ["garbage\n", "[1,2]\n", "7\n", '{"sweep": "x"}\n'])
def test_a_file_that_is_no_journal_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.journal").write_text(content)
    with pytest.raises(InputError, match=r"run\.journal: is no journal of run, or damaged"):
        Journal(tmp_path, "x", "run")


@pytest.mark.parametrize("length", [1.0, 2.5, 4.0])
def test_the_acceptance_length_counts_whole_verifications(length: float) -> None:
    run = simulate_variant(load_scenario("quickstart", [*SMALL, f"speculation.acceptance_length={length}"]))
    (found,) = iteration_tokens(run)
    assert found == pytest.approx(length, rel=0.001 if length in (1.0, 4.0) else 0.02)
    assert found <= 4.0


def test_archives_have_a_bound_and_kernels_their_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    one = load_scenario("quickstart", [*SMALL, "workload.response_tokens={kind: constant, tokens: 1}"])
    assert "k=3, no verification" in render_brief(project(one))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros.npy", bytes(4_000_000))
    monkeypatch.setattr(archives, "MOST_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="unpacks to 4,000,000 bytes"):
        archives.unarchived(packed.getvalue())
    small = archives.archive({"x": np.arange(3)})
    assert archives.unarchived(small)["x"].tolist() == [0, 1, 2]
    own = build.library_path()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-ffast-math"))
    assert build.library_path() != own


def test_new_recomputes_where_nothing_else_fits_and_exports_name_what_they_cannot_say() -> None:
    given = {"model": "qwen3-32b", "hardware": "h200_sxm", "gpus": "12", "batch": "64x16", "response-tokens": "8000"}
    text = with_layout(Answers.parse(given), "new", Path())
    assert "recompute: full" in text
    assert scenario_of_text(text, "new.yaml").trainer.recompute == "full"
    given = load_scenario("qwen235b_512", ["lag=1", "engine.tensor_parallel=8"])
    told = export_scenario(given, "verl")
    sizes = {key: word for key, _, word in (one.lstrip("+").partition("=") for one in told.overrides)}
    assert {word for key, word in sizes.items() if key.endswith("n_gpus_per_node")} <= {"4"}
    assert sizes["actor_rollout_ref.hybrid_engine"] == "false"  # pools of their own
    assert any("checkpoint of your draft" in text for text in export_scenario(given, "nemo-rl").left)


def test_an_update_that_waits_for_the_host_says_why_its_precision_changes_nothing() -> None:
    small = ("workload.max_sequence_tokens=8192", "trainer.micro_batch_tokens=8192")
    base = load_scenario("qwen235b_512", ["simulation.replications=1", "speculation.method=none", *small])
    answer = compare(base, vary(base, "trainer.precision=fp8"))
    # Experts in FP8 launch a little more than in BF16: what their kernels gain, the host takes.
    assert answer.speedup.mean == pytest.approx(1, abs=0.03)
    assert any(text.startswith("A and B: ") or "host's floor" in text for text in answer.warnings)
    assert any("of the update is the host's floor" in text for text in answer.warnings)
    assert not any("host's floor" in text for text in project(load_scenario("quickstart", SMALL)).warnings)
