"""Command lines read without typer mean what typer takes them for."""

from typing import Any

import pytest
import typer

from rlsim.cli.commands import app_of
from rlsim.cli.direct import HOMES, direct_call

PLAIN = [
    ["project", "quickstart"],
    ["project", "a.yaml", "k=5", "--set", "a.b=[1, 2]", "lag=1", "--set=c=d", "--json", "--out", "there", "--full"],
    ["project", "a.yaml", "--seed", "7", "--seed=8", "--replications", "800", "--brief"],
    ["run", "x", "--steps", "10", "--samples=5", "--no-baseline"],
    ["sweep", "x", "--vary", "k=1:3", "--vary", "lag=0,1", "--jobs", "1", "--overwrite"],
    ["plan", "x", "--max-staleness", "0", "--objective", "gpus=20", "--gpus", "8:64"],
    ["sensitivity", "x", "--uncertain", "a=1:2", "--full"],
]
LEFT = [
    [], ["--help"], ["models"], ["project"], ["project", "--help"], ["project", "x", "--sett", "a=1"],
    ["project", "x", "--seed", "one"], ["project", "x", "--seed"],
    ["run", "x", "--replications", "0"], ["project", "x", "--json=1"], ["project", "x", "--out", "--json"],
    ["project", ""], ["project", "--", "x"], ["plan", "x", "--deadline-hours", "2.5"],
]  # fmt: skip


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_plain_words_mean_what_typer_makes_of_them(words: list[str]) -> None:
    command = typer.main.get_command(app_of()).commands[words[0]]  # type: ignore[attr-defined]
    taken = command.make_context(words[0], words[1:]).params
    direct: Any = direct_call(words)
    assert direct.func.__name__ == words[0]
    defaults = dict(zip(direct.func.__code__.co_varnames[1:], direct.func.__defaults__, strict=False))
    assert {name: value or None for name, value in {**defaults, **direct.keywords}.items()} == {
        name: value or None for name, value in taken.items()
    }


@pytest.mark.parametrize("words", LEFT, ids=" ".join)
def test_others_are_left_to_typer(words: list[str]) -> None:
    assert direct_call(words) is None


def test_it_knows_commands_of_rlsim_alone() -> None:
    assert {*HOMES} <= {*typer.main.get_command(app_of()).commands}  # type: ignore[attr-defined]
