"""What users write at the edges: shorthands, tables as people have them, files that are damaged or too large."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

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

SMALL = ("workload.prompts_per_step=16", "simulation.replications=1")


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("workload.response_tokens=900", "workload.response_tokens.mean_tokens=900"),
        ("workload.prompt_tokens=50", "workload.prompt_tokens.tokens=50"),
        ("hardware.price_per_gpu_hour_usd=2", "hardware.price_per_gpu_hour_usd.value=2"),
        ("speculation=none", "speculation.method=none"),
    ],
)
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


@pytest.mark.parametrize(
    "content", ["garbage\n", "[1,2]\n", "7\n", '{"run": "x"}\n{"cell": 1}\n', '{"run": "x"}\nnull\n']
)
def test_a_file_that_is_no_journal_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.journal").write_text(content)
    with pytest.raises(InputError, match=r"run\.journal: is no journal of run, or damaged"):
        Journal(tmp_path, "x", "run")


def test_an_archive_is_not_unpacked_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros.npy", bytes(4_000_000))
    monkeypatch.setattr(archives, "MOST_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="unpacks to 4,000,000 bytes"):
        archives.unarchived(packed.getvalue())
    small = archives.archive({"x": np.arange(3)})
    assert archives.unarchived(small)["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("length", [1.0, 2.5, 4.0])
def test_the_acceptance_length_counts_whole_verifications(length: float) -> None:
    run = simulate_variant(load_scenario("quickstart", [*SMALL, f"speculation.acceptance_length={length}"]))
    (found,) = iteration_tokens(run)
    assert found == pytest.approx(length, rel=0.001 if length in (1.0, 4.0) else 0.02)
    assert found <= 4.0


def test_responses_of_one_token_verify_nothing() -> None:
    one = load_scenario("quickstart", [*SMALL, "workload.response_tokens={kind: constant, tokens: 1}"])
    assert "k=3, no verification" in render_brief(project(one))


def test_a_kernel_of_other_flags_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    own = build.library_path()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-ffast-math"))
    assert build.library_path() != own


def test_new_recomputes_activations_where_nothing_else_fits() -> None:
    given = {"model": "qwen3-32b", "hardware": "h200_sxm", "gpus": "12", "batch": "64x16", "response-tokens": "8000"}
    text = with_layout(Answers.parse(given), "new", Path())
    assert "recompute: full" in text
    assert scenario_of_text(text, "new.yaml").trainer.recompute == "full"


def test_an_update_that_waits_for_the_host_says_why_its_precision_changes_nothing() -> None:
    small = ("workload.max_sequence_tokens=8192", "trainer.micro_batch_tokens=8192")
    base = load_scenario("qwen235b_512", ["simulation.replications=1", "speculation.method=none", *small])
    answer = compare(base, vary(base, "trainer.precision=fp8"))
    # Experts in FP8 launch a little more than in BF16: what their kernels gain, the host takes.
    assert answer.speedup.mean == pytest.approx(1, abs=0.03)
    assert any(text.startswith("A and B: ") or "host's floor" in text for text in answer.warnings)
    assert any("of the update is the host's floor" in text for text in answer.warnings)
    assert not any("host's floor" in text for text in project(load_scenario("quickstart", SMALL)).warnings)


def test_an_export_has_the_nodes_of_the_hardware_and_names_what_it_cannot_say() -> None:
    given = load_scenario("qwen235b_512", ["lag=1", "engine.tensor_parallel=8"])
    told = export_scenario(given, "verl")
    sizes = {key: word for key, _, word in (one.lstrip("+").partition("=") for one in told.overrides)}
    assert {word for key, word in sizes.items() if key.endswith("n_gpus_per_node")} <= {"4"}
    assert sizes["actor_rollout_ref.hybrid_engine"] == "false"  # pools of their own
    assert any("checkpoint of your draft" in text for text in export_scenario(given, "nemo-rl").left)
