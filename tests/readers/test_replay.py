"""Trajectories as they are: what a file holds is what is drawn, and a step of it lasts as one of its own."""

from collections.abc import Callable
from pathlib import Path

import agent_processes as known
import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import Workload
from rlsim.workload.batches import Generated, draw_rollouts, longest_environment_s
from rlsim.workload.lengths import Place, Scales

Command = Callable[..., tuple[int, str, str]]
ONE_STEP = {"simulation.seed": 1, "simulation.replications": 1, "simulation.steps": 1, "speculation.method": "none",
            "workload.environment_s": 0.0}  # fmt: skip


def replaying(given: Workload, file: Path, **keys: object) -> Workload:
    agent = {**given.model_dump()["agent"], "replay": {"kind": "trace", "path": str(file)}, **keys}
    return Workload.model_validate({**given.model_dump(), "agent": agent})


def drawn(given: Workload, scale: float = 1.0) -> Generated:
    return draw_rollouts(given, Place(7, 0, 0), Scales(scale))[0]


def prompts_of(one: Generated) -> list[list[tuple[object, ...]]]:
    """Every trajectory with all that it has, prompt by prompt, in an order of their own."""
    assert one.turns is not None
    turns, found = one.turns, {}
    for place, group in enumerate(one.batch.group.tolist()):
        span = slice(turns.first[place], turns.first[place + 1])
        row = (int(one.batch.prompt_tokens[place]), int(one.batch.response_tokens[place]),
               tuple(turns.history_tokens[span].tolist()), tuple(turns.response_tokens[span].tolist()),
               round(float(turns.environment_s[span].sum()), 3))  # fmt: skip
        found.setdefault(group, []).append(row)
    return sorted(sorted(rows) for rows in found.values())


@pytest.mark.parametrize("name", known.PROCESSES)
def test_a_file_with_as_many_prompts_is_drawn_whole(name: str, run: Command, tmp_path: Path) -> None:
    truth = known.workload(name, prompts=16)
    code, _, err = run("traces", known.written(tmp_path / "t.jsonl", truth), "--out", tmp_path / "found")
    assert (code, err) == (0, "")
    again = replaying(truth, tmp_path / "found" / "trajectories.csv", failure_share=0.0)
    measured = draw_rollouts(truth, Place(1, 0, 0))[0]
    assert prompts_of(drawn(again)) == prompts_of(measured)
    assert measured.turns is not None
    longest_s = max(np.add.reduceat(measured.turns.environment_s, measured.turns.first[:-1]))
    assert longest_environment_s(again, Place(3, 0, 0)) == pytest.approx(longest_s, rel=1e-4)


def test_a_step_of_replayed_trajectories_lasts_as_their_own(run: Command, tmp_path: Path) -> None:
    truth = known.workload("hard prompts have more of all", prompts=16)
    assert run("traces", known.written(tmp_path / "t.jsonl", truth), "--out", tmp_path / "found")[0] == 0
    keys = {f"workload.{key}": value for key, value in truth.model_dump().items() if key != "environment_s"}
    own = vary(load_scenario("quickstart"), {**keys, **ONE_STEP, "trainer.global_batch_samples": None})
    text = (tmp_path / "found" / "fragment.yaml").read_text().replace("    # replay:", "    replay:")
    (tmp_path / "mine.yaml").write_text("extends: quickstart\n" + text)
    shape = {key: keys[key] for key in ("workload.prompts_per_step", "workload.generations_per_prompt")}
    settings = {**shape, **ONE_STEP, "trainer.global_batch_samples": None}
    mine = vary(load_scenario(str(tmp_path / "mine.yaml")), settings)
    expected, found = (project(one).candidate for one in (own, mine))
    assert found.phases.generation_s.mean == pytest.approx(expected.phases.generation_s.mean, rel=0.01)
    assert any("those of trajectories.csv" in one for one in project(mine).assumptions)


ROWS = """prompt,trajectory,prompt_tokens,response_tokens,observation_tokens,environment_s
,a,100,10,5,2
,a,100,20,0,0
,b,50,30,0,0
,c,60,40,7,9
,c,60,50,7,9
,c,60,60,0,0
"""


@pytest.fixture
def three(tmp_path: Path) -> Workload:
    (tmp_path / "three.csv").write_text(ROWS)
    given = known.workload("independent", prompts=4, size=3)
    return replaying(given, tmp_path / "three.csv")


def test_prompts_are_dealt_and_contexts_are_cut(three: Workload, tmp_path: Path) -> None:
    """Without names every prompt has trajectories of its own choice, each of them once before any comes twice."""
    plain = drawn(three)
    assert plain.turns is not None and plain.batch.samples == 12
    assert all(sorted({row[0] for row in rows}) == [50, 60, 100] for rows in prompts_of(plain))
    cut = drawn(three.model_copy(update={"max_sequence_tokens": 120}))
    assert {row[2:4] for rows in prompts_of(cut) for row in rows} == {
        ((0, 15), (10, 5)), ((0,), (30,)), ((0, 47), (40, 13)),
    }  # fmt: skip
    longer = drawn(three, 2.0)
    assert {row[3] for rows in prompts_of(longer) for row in rows} == {(20, 40), (60,), (80, 100, 120)}
    fewer = replaying(three, tmp_path / "three.csv", turns={"kind": "constant", "turns": 2}, max_turns=2)
    assert {len(row[3]) for rows in prompts_of(drawn(fewer)) for row in rows} == {1, 2}


@pytest.mark.parametrize(("text", "message"), [
    ("a,b\n1,2\n", "lacks the column prompt"), (ROWS.replace(",a,100,10", ",a,x,10"), "line 2: prompt_tokens must be"),
    (ROWS.splitlines()[0] + "\n", "holds no trajectory"), (ROWS.replace("5,2", "5,-2"), "environment_s must be"),
    (ROWS.replace(",b,", f",{'b' * 200_000},"), "line 4: field larger"),
])  # fmt: skip
def test_a_file_that_holds_none_is_refused_with_its_place(text: str, message: str, three: Workload) -> None:
    Path(three.agent.replay.path).write_text(text)  # type: ignore[union-attr]
    with pytest.raises(InputError, match=message):
        drawn(three)


def test_what_replay_cannot_do_is_refused(three: Workload, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="failure_share needs drawn attempts"):
        replaying(three, tmp_path / "three.csv", failure_share=0.1)
    (tmp_path / "three.csv").unlink()
    with pytest.raises(InputError, match="file of trajectories not found"):
        drawn(three)


def test_a_scenario_means_its_file_from_anywhere_and_its_digest_its_content(three: Workload, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "extends: quickstart\nspeculation: {method: none}\n"
        "workload: {agent: {replay: {kind: trace, path: three.csv}}}\n"
    )

    def loaded() -> Scenario:
        return load_scenario(str(tmp_path / "s.yaml"))

    first = project(vary(loaded(), {"simulation.replications": 1}))
    assert str(tmp_path) in loaded().workload.agent.replay.path  # type: ignore[union-attr]
    (tmp_path / "three.csv").write_text(ROWS.replace(",60", ",6000"))
    second = project(vary(loaded(), {"simulation.replications": 1}))
    assert first.digest != second.digest and second.candidate.step_s.mean > first.candidate.step_s.mean
