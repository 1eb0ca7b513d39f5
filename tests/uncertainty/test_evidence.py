"""The file of measured times, and the runs of it nearest to a scenario: what they differ in, in which order."""

from pathlib import Path

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.parameters.posterior import evidence_path
from rlsim.parameters.terms import Term
from rlsim.projection.project import project
from rlsim.projection.uncertainty import features, nearest
from rlsim.projection.uncertainty.evidence import Evidence, EvidenceTable, load_evidence
from rlsim.projection.uncertainty.features import FEATURES, Coded, differences
from rlsim.projection.uncertainty.predictive import log_draws, phase_groups, posterior_of, prediction_of
from rlsim.projection.uncertainty.sources import covariance_shares, mean_shares, sources_of
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.report.style import Style
from rlsim.report.text.projection import render
from rlsim.results import Projection

ROWS = (Evidence("iteration", "a", 0.25, {"x": 0.5, "y": -1.0}, {"engine: e": 1.0}, {"model": "m", "gpus": 8.0}),
        Evidence("step", "b", -0.5, {}, {"engine: e": 0.75, "trainer: t": 0.25}))  # fmt: skip
TABLE = EvidenceTable(ROWS, (Term("x", 0.5, 0.1), Term("y", 0.3)), {"x": 0.2}, {"engines": "abc"})


def test_evidence_comes_back_and_the_shipped_holds_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "evidence.npz"
    path.write_bytes(TABLE.to_bytes())
    found = load_evidence(path)
    assert (found.rows, found.terms, found.shifts, found.digests) == (ROWS, TABLE.terms, TABLE.shifts, TABLE.digests)
    assert found.to_bytes() == TABLE.to_bytes()
    found = load_evidence()
    assert {row.kind for row in found.rows} >= {"iteration", "training", "transfer", "step", "train"}
    names = {term.name for term in found.terms}
    assert all(name in names for row in found.rows for name in row.slopes)
    assert found.to_bytes() == evidence_path().read_bytes()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x00" * 100])
def test_another_file_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"mine\.npz: is no evidence"):
        load_evidence(path)


def test_nearest_runs_differ_in_names_before_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = [
        {"engine": engine, "release": release, "batch": batch}
        for engine, release, batch in (("vllm", "0.11.0", 8.0), ("vllm", "0.12.0", 8.0), ("sglang", "0.5.9", 32.0))
    ]
    values = Coded.of("iteration", runs).values
    names = [one.name for one in FEATURES["iteration"]]
    releases = differences("iteration", values[0], values[1])
    engines = differences("iteration", values[0], values[2])
    assert {names[i]: releases[i] for i in np.flatnonzero(releases)} == {"release": 1.0}
    assert {names[i]: engines[i] for i in np.flatnonzero(engines)} == {"engine": 1.0, "batch": 2.0}
    scenario = load_scenario("quickstart")
    others = {"twice": vary(scenario, "workload.prompts_per_step=128"), "model": vary(scenario, "model=qwen3-8b")}
    others["both"] = vary(others["model"], "workload.prompts_per_step=256")
    rows = [Evidence("step", name, 0.1, {}, {}, features.about(one, "step")) for name, one in others.items()]
    rows.append(Evidence("step", "own", 0.1, {}, {}, features.about(scenario, "step")))
    path = tmp_path / "evidence.npz"
    path.write_bytes(EvidenceTable(tuple(rows), (), {}, {}).to_bytes())
    monkeypatch.setattr(nearest, "evidence_path", lambda: path)
    found = nearest.nearest(scenario, "step", 4)
    assert [run.id for run in found] == ["own", "twice", "model", "both"]
    assert [[one.feature for one in run.differences] for run in found] == [
        [], ["samples of a step"], ["model"], ["model", "samples of a step"]
    ]  # fmt: skip


SMALL = ("simulation.replications=1", "workload.prompts_per_step=16", "trainer.global_batch_samples=512")
EAGER = ("engine.max_captured_tokens=8", "hardware.eager_launch_s.value=1e-4")


def simulated(*settings: str) -> SimulatedVariant:
    return simulate_variant(load_scenario("quickstart", [*SMALL, *settings]))


@pytest.fixture(scope="module")
def run() -> SimulatedVariant:
    return simulated()


@pytest.fixture(scope="module")
def answer() -> Projection:
    return project(load_scenario("quickstart", SMALL))


def test_sources_share_the_variance_of_the_step(run: SimulatedVariant) -> None:
    found = sources_of(run)
    assert sum(one.share for one in found) == pytest.approx(1.0)
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    assert len({one.name for one in found}) == len(found)
    assert all(one.settle and one.command.startswith("rlsim ") for one in found)
    predicted, posterior = prediction_of(run), posterior_of(run.scenario)
    whole = np.sum([one.draws for one in sources_of(run)], axis=0)
    shares, groups = mean_shares(predicted), phase_groups(run.scenario)
    direct = sum(share * log_draws(posterior, getattr(predicted.slopes, phase), dict.fromkeys(groups[phase], 1.0))
                 for phase, share in shares.items())  # fmt: skip
    np.testing.assert_allclose(whole, direct, atol=1e-9)
    # To first order these are the draws behind the interval.
    assert np.corrcoef(whole, np.log(predicted.step_s))[0, 1] > 0.95
    assert whole.std() == pytest.approx(np.log(predicted.step_s).std(), rel=0.1)
    generator = np.random.default_rng(3)
    draws = generator.standard_normal((3, 20_000)) * np.array([[0.1], [0.2], [0.3]])
    whole = draws.sum(axis=0)
    for row, share in zip(draws, covariance_shares(draws), strict=True):
        lost = 1 - np.var(whole - row) / np.var(whole)
        assert share == pytest.approx(lost, abs=0.01)
    one = np.random.default_rng(4).standard_normal(5000)
    assert covariance_shares(np.array([one, one])) == pytest.approx([0.5, 0.5])
    assert covariance_shares(np.array([3 * one, -one])) == pytest.approx([1.5, -0.5])
    assert covariance_shares(np.zeros((2, 10))).tolist() == [0.0, 0.0]


def test_launches_and_releases_that_were_never_measured_are_sources(run: SimulatedVariant) -> None:
    def share(of: SimulatedVariant) -> float:
        return sum(one.share for one in sources_of(of) if one.name.startswith("launches"))

    eager = simulated(*EAGER)
    assert share(eager) > 0.1 > share(run)
    (launches,) = [one for one in sources_of(eager) if one.name.startswith("launches")]
    assert launches.assumed
    assert "max_captured_tokens" in launches.settle
    names = [one.name for one in sources_of(simulated("engine.version=9.9.0")) if one.assumed]
    assert "vllm 9.9.0: never measured" in names


def test_the_answer_holds_its_support_and_says_it(answer: Projection) -> None:
    support = answer.support
    told = answer.as_dict()["support"]
    shares = {nearest["kind"]: nearest["share"] for nearest in told["nearest"]}
    assert shares.keys() == {"iteration", "training", "transfer", "step"}
    assert sum(shares.values()) - shares["step"] == pytest.approx(1.0, abs=0.05)
    assert all(nearest["runs"][0]["id"] for nearest in told["nearest"])
    low, high = answer.candidate.step_s.low, answer.candidate.step_s.high
    assert (1 + support.half_width) ** 2 == pytest.approx(high / low)
    for width in (60, 100):
        text = render(answer, Style(width))
        section = text[text.index("\nNearest measurements\n") :].split("\n\n")[0].strip()
        assert "either way (90 %); the nearest measured step, " in " ".join(section.split())
        assert "rlsim calibrate" in " ".join(section.split())
        assert max(map(len, section.splitlines()[1:])) <= width
