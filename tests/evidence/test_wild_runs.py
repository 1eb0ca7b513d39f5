"""Deviations of users' runs: pooling by family, sources that are left out, and tables of kind wild."""

from pathlib import Path

import pytest

from research.deviations import Deviation, fitted_deviations
from rlsim import load_scenario
from rlsim.evidence.compare import validate_table
from rlsim.evidence.published import published_table
from rlsim.evidence.tables import read_table
from rlsim.evidence.wild import phases_of
from rlsim.parameters.users import load_user_runs
from rlsim.projection.project import project
from rlsim.schema.users import UserDeviation


def of(source: str, log_ratio: float, framework: str = "verl") -> Deviation:
    """A deviation of a source's updates."""
    return Deviation("train", source, (f"fsdp, {framework}", "fsdp", "all"), log_ratio, 4)


def entries(found: list[Deviation]) -> dict[str, UserDeviation]:
    """Entries by family."""
    return {one.family: one for one in fitted_deviations(found)}


ALIKE = [of(name, value) for name, value in (("a", 0.1), ("b", 0.2), ("c", 0.0), ("d", 0.15))]


def test_sources_that_agree_give_their_mean_and_little_spread() -> None:
    found = entries(ALIKE)["fsdp, verl"]
    assert found.mean == pytest.approx(0.11, abs=0.05) and found.sources == 4 and found.rows == 16


def test_one_broken_source_widens_and_hardly_moves_the_others() -> None:
    before, after = entries(ALIKE)["fsdp, verl"], entries([*ALIKE, of("e", 1.5)])["fsdp, verl"]
    assert abs(after.mean - before.mean) < 0.1 and after.above > before.above


def test_a_framework_that_nobody_measured_is_wider_than_one_that_was() -> None:
    found = entries([*ALIKE, of("f", 0.4, "skyrl")])
    assert found["fsdp"].above > found["fsdp, verl"].above and found["all"].above > found["fsdp"].above


def test_the_shipped_set_was_tested_on_left_out_sources() -> None:
    known = load_user_runs()
    assert known is not None
    score = known.fit.left_out["all"]
    # All 188 but those of two steps whose memory is counted 2 % beyond their GPUs.
    assert score.values == 184 and 0.8 <= score.coverage <= 0.97 and score.median_error < 0.4


def test_what_a_row_says_is_none_of_a_phase_is_left_out() -> None:
    cells = {"generation_s": "9", "train_s": "4", "total_step_s": "20", "flag": "generation not comparable"}
    assert phases_of(cells) == {"train": 4.0}
    assert phases_of({"train_s": "4", "total_step_s": "4", "notes": "total is the sum of phases"}) == {"train": 4.0}


def test_a_table_of_users_runs_is_compared_with_its_scenarios(tmp_path: Path) -> None:
    source = published_table("wild/steps.csv")
    lines = source.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.startswith(("id,", "S11_3b_lora_A1", "P03"))]
    (tmp_path / "steps.csv").write_text("\n".join(kept) + "\n", encoding="utf-8")
    (tmp_path / "scenarios").mkdir()
    name = "S11_3b_lora_A1.yaml"
    (tmp_path / "scenarios" / name).write_text((source.parent / "scenarios" / name).read_text(encoding="utf-8"))
    found = validate_table(tmp_path / "steps.csv", "wild", replications=1)
    by_phase = {row.group: row for row in found.rows if row.id.startswith("S11")}
    assert set(by_phase) == {"generation", "logprob", "train", "transfer", "step"}
    assert all(row.covered for row in by_phase.values())
    assert all("scenarios/P03" in (row.skipped or "") for row in found.rows if row.id.startswith("P03"))


def test_every_published_run_has_a_scenario_that_loads() -> None:
    folder = published_table("wild/steps.csv").parent / "scenarios"
    rows = read_table(published_table("wild/steps.csv"), ("id",))
    assert {row.cells["id"] for row in rows} == {path.stem for path in folder.glob("*.yaml")}


def test_the_network_is_asked_for_first_and_its_interval_holds_what_it_may_be() -> None:
    path = published_table("wild/steps.csv").parent / "scenarios" / "D1_deepswe_32b_h200.yaml"
    asked = project(load_scenario(path))
    assert "network between" in asked.caveats[0] and "cluster.fabric" in asked.warnings[0]
    train = asked.baseline.phases.train_s
    for fabric in ("infiniband_8x400", "ethernet_2x100"):
        stated = project(load_scenario(path, ["cluster.fabric=" + fabric]))
        own = stated.baseline.phases.train_s
        assert not any("network between" in one for one in (*stated.caveats, *stated.warnings))
        assert train.low < own.mean < train.high and own.high / own.low < train.high / train.low
