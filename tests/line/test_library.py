"""The library from a notebook: mappings in, text and tables out, errors in our words."""

from dataclasses import replace
from pathlib import Path

import pytest

import rlsim
from rlsim.planning.techniques import techniques
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
        "extends": "quickstart",
        "question": scenario.question,
        "name": "quickstart",
        "cluster": {"num_gpus": 16},
    }
    assert rlsim.load_scenario(mapping, {"simulation.replications": 1}) == scenario
    path = tmp_path / "mine.yaml"
    path.write_text("extends: quickstart\nname: quickstart\n")
    assert rlsim.load_scenario(path, SHORT) == scenario
    assert rlsim.load_scenario("quickstart", "k=2").speculation.draft_length == 2
    with pytest.raises(rlsim.InputError, match=r"^the scenario: .*unknown key 'modle'; did you mean 'model'"):
        rlsim.load_scenario({"extends": "quickstart", "modle": "qwen3-8b"})


def test_a_sweep_takes_a_mapping(scenario: rlsim.Scenario) -> None:
    asked = {"k": [0, 2], "hardware": ("h100_sxm", "mi300x")}
    by_mapping, by_text = rlsim.sweep(scenario, asked), rlsim.sweep(scenario, ["k=0,2", "hardware=h100_sxm,mi300x"])
    assert by_mapping == by_text and len(by_mapping.done) == 4
    assert rlsim.sweep(scenario, {"k": "0:4:2"}).axes == {"k": ("0", "2", "4")}
    with pytest.raises(rlsim.InputError, match="values of a sweep are"):
        rlsim.sweep(scenario, {"k": [object()]})
    with pytest.raises(rlsim.InputError, match="k"):
        rlsim.sweep(scenario, {"k": []})


def test_a_scenario_made_by_hand_is_refused_in_our_words() -> None:
    with pytest.raises(rlsim.InputError, match=r"model: must be a mapping.*got 'qwen3-8b'|are required") as error:
        rlsim.Scenario(model="qwen3-8b")  # type: ignore[call-arg,arg-type]
    assert "load_scenario" in str(error.value) and "\n" not in str(error.value) and "pydantic" not in str(error.value)


def test_every_answer_is_text_and_table(scenario: rlsim.Scenario) -> None:
    wanted = rlsim.Wanted(rlsim.Answers("qwen3-1.7b", "h100_sxm", 8, (8, 4), 500))
    answers: list[Answer] = [
        rlsim.project(scenario),
        rlsim.run(scenario, steps=2),
        rlsim.sweep(scenario, {"k": [0, 2]}),
        rlsim.compare(scenario, rlsim.vary(scenario, {"k": 0})),
        rlsim.blame(scenario),
        rlsim.sensitivity(scenario),
        techniques(scenario),
        rlsim.check(scenario, {"step": 60.0, "train": 20.0}),
        rlsim.headroom(scenario),
        rlsim.plan(scenario),
        rlsim.size(wanted, ["h100_sxm"]),
    ]
    assert str(answers[0]) == render_brief(answers[0])  # type: ignore[arg-type]
    for answer in answers:
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
