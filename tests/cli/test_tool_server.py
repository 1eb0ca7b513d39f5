"""rlsim as tools of the Model Context Protocol, driven by a client of its SDK."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp
import pytest

from rlsim.cli.tool_server import server_of

SMALL = """
extends: quickstart
name: small
workload: {prompts_per_step: 16}
simulation: {replications: 2}
"""
TRL = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
per_device_train_batch_size: 8
num_generations: 8
max_completion_length: 1024
"""


def answers(*calls: tuple[str, dict[str, Any]], seconds: float = 100.0) -> list[tuple[bool, str]]:
    """(whether it is an error, text) of each call, over one connection."""

    async def talk() -> list[tuple[bool, str]]:
        async with mcp.Client(server_of(seconds)) as client:
            found = [await client.call_tool(name, words) for name, words in calls]
            return [(bool(one.is_error), one.content[0].text) for one in found]

    return asyncio.run(talk())


def test_every_tool_answers_in_the_contract_of_its_command() -> None:
    words = {"scenario": SMALL}
    one_gpu = {"config": "grpo.yaml", "framework": "trl", "files": {"grpo.yaml": TRL}, "hardware": "h100"}
    found = answers(
        ("project", {**words, "words": ["k=2", "speculation.acceptance_length=2"]}),
        ("plan", {**words, "max_staleness": 0}),
        ("size", {**words, "deadline_s": 900}),
        ("check", {**words, "measured_s": {"step": 70.0, "generation": 30.0}}),
        ("improve", {**words, "only": "idle"}),
        ("import_config", one_gpu),
    )
    assert not any(wrong for wrong, _ in found), [text for wrong, text in found if wrong]
    *documents, imported = [text for _, text in found]
    schemas = [json.loads(text)["schema"].partition("/")[0] for text in documents]
    assert schemas == ["rlsim.projection", "rlsim.plan", "rlsim.size", "rlsim.check", "rlsim.improvement"]
    assert json.loads(documents[0])["candidate"]["draft_length"] == 2
    ((wrong, again),) = answers(("project", {"scenario": imported}))
    assert not wrong and json.loads(again)["candidate"]["step_s"]["mean"] > 0


def test_bad_input_is_an_error_with_the_commands_own_message() -> None:
    found = answers(
        ("project", {"scenario": "quickstrat"}),
        ("project", {"scenario": SMALL, "words": ["trainer.tensor_paralel=2"]}),
        ("project", {"scenario": SMALL, "words": ["--out=here"]}),
        ("project", {"scenario": "a: [1"}),
        ("project", {"scenario": SMALL, "overrides": ["k=2"]}),
        ("check", {"scenario": SMALL, "measured_s": {"stap": 1.0}}),
        ("import_config", {"framework": "trl", "config": "a.yaml", "files": {"../a.yaml": TRL}}),
        ("import_config", {"framework": "nobody", "config": "a.yaml", "files": {"a.yaml": TRL}}),
    )
    assert all(wrong for wrong, _ in found)
    expected = [
        "quickstart",
        "tensor_parallel",
        "--out",
        "line 1",
        "takes scenario, words",
        "stap",
        "without '..'",
        "trl",
    ]
    for (_, text), part in zip(found, expected, strict=True):
        assert part in text and "Traceback" not in text


def test_a_call_reads_nothing_but_what_it_is_passed(tmp_path: Path) -> None:
    secret = tmp_path / "card.yaml"
    secret.write_text("name: quite-secret\n")
    found = answers(
        ("project", {"scenario": str(secret)}),
        ("project", {"scenario": SMALL + f"model: {secret}\n"}),
        ("project", {"scenario": f"extends: {secret}\n"}),
        ("project", {"scenario": "quickstart", "words": [f"workload.response_tokens={{kind: trace, path: {secret}}}"]}),
        ("import_config", {"framework": "nemo-rl", "config": "a.yaml", "files": {"a.yaml": f"defaults: {secret}\n"}}),
    )
    assert all(wrong and "quite-secret" not in text for wrong, text in found)
    assert all("outside" in text for _, text in found), found


def test_a_call_that_takes_too_long_is_ended() -> None:
    ((wrong, text),) = answers(("plan", {"scenario": "qwen235b_2048", "max_staleness": 2}), seconds=1.0)
    assert wrong and "no answer within 1 s" in text


def test_the_command_serves_on_standard_input_and_output() -> None:
    async def talk() -> tuple[list[str], str]:
        command = mcp.StdioServerParameters(command=sys.executable, args=["-m", "rlsim", "mcp", "--seconds", "60"])
        async with mcp.Client(command) as client:
            tools = (await client.list_tools()).tools
            found = await client.call_tool("project", {"scenario": SMALL})
            return [tool.name for tool in tools], found.content[0].text

    names, text = asyncio.run(talk())
    assert names == ["project", "plan", "size", "check", "improve", "import_config"]
    assert json.loads(text)["scenario"] == "small"


def test_what_is_written_stays_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((wrong, _),) = answers(("project", {"scenario": SMALL}))
    assert not wrong and not list(tmp_path.iterdir())


def test_a_refusal_is_one_message_that_names_the_argument() -> None:
    found = answers(
        ("check", {"scenario": "quickstart", "measured_s": {"step": 1e308}}),
        ("check", {"scenario": "quickstart", "measured_s": {"step": "abc"}}),
        ("check", {"scenario": "quickstart"}),
        ("plan", {"scenario": SMALL, "max_staleness": 1.5}),
        ("improve", {"scenario": SMALL, "only": "what"}),
        ("project", {"scenario": ""}),
        ("size", {"scenario": "qwen3-8b"}),
        ("import_config", {"framework": "trl", "config": "--help", "files": {"a.yaml": TRL}}),
        ("import_config", {"framework": "trl", "config": "b.yaml", "files": {"a.yaml": TRL}}),
    )
    named = [
        "step",
        "measured_s.step",
        "measured_s",
        "max_staleness",
        "only",
        "scenario",
        "devices",
        "config",
        "a.yaml",
    ]
    for (wrong, text), part in zip(found, named, strict=True):
        assert wrong and part in text and "\n" not in text, text
        assert "pydantic" not in text and "Traceback" not in text and "rlsim:" not in text, text


def test_a_model_is_sized_on_devices_and_what_no_size_keeps_is_told() -> None:
    (sized, too_dear) = answers(
        ("size", {"scenario": "qwen3-0.6b", "devices": ["h100_sxm"]}),
        ("size", {"scenario": SMALL, "budget_usd": 1e-9}),
    )
    assert not sized[0] and json.loads(sized[1])["devices"][0]["device"] == "h100_sxm"
    assert too_dear[0] and "no size keeps to the budget" in too_dear[1]
    assert "clusters planned" not in too_dear[1] and "standard output" not in too_dear[1]
