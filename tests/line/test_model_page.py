"""docs/model.md against the program: the parts that answers print and what they rest on, the assumed constants."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.units import GIB, MICROSECOND

TEXT = (Path(__file__).parents[2] / "docs" / "model.md").read_text()
PHASES = (("generation_s",), ("data_s", "logprob_s", "train_s"), ("prepare_s", "refit_s"))
"""Phases of each table of parts, in the order of the page."""
STEP = ("simulation.replications=1", "simulation.steps=1")
SHORT = (*STEP, "workload.prompts_per_step=16", "trainer.global_batch_samples=null")
UNITS = {"": 1.0, "GiB": GIB, "MiB": 2.0**20, "us": MICROSECOND}


def tables(head: str) -> list[list[list[str]]]:
    """Cells of the tables whose first column is called ``head``, without header and ruler."""
    blocks = [block.splitlines() for block in TEXT.split("\n\n") if block.startswith(f"| {head} |")]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]] for lines in blocks]


def parts() -> Iterator[tuple[str, str, str]]:
    """Phase, part and what it rests on."""
    for phases, rows in zip(PHASES, tables("part"), strict=True):
        for row in rows:
            yield from ((phase, name, row[2]) for phase in phases for name in row[0].split(", "))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("quickstart", ()),
        ("quickstart", ("trainer.critic=true", "trainer.backend=fsdp", "engine.cuda_graphs=false")),
        ("qwen235b_512", ()),
        ("qwen8b_async_lag1", ()),
    ],
)
def test_every_part_of_an_answer_is_on_the_page_with_what_it_rests_on(name: str, changes: tuple[str, ...]) -> None:
    told = {(phase, part): root for phase, part, root in parts()}
    shown = project(load_scenario(name, [*SHORT, *changes])).candidate.parts
    assert {(part.phase, part.name) for part in shown} <= told.keys()
    for part in shown:
        root = told[part.phase, part.name]
        assert part.measured == 0.0 or "measured" in root, part
        assert part.measured == 1.0 or part.source in root, part


def test_the_page_gives_assumed_constants_their_values() -> None:
    (rows,) = tables("constant")
    for path, value, *_ in rows:
        module, _, constant = path.strip("`").rpartition(".")
        number, _, unit = value.partition(" ")
        assert getattr(import_module(module), constant) == pytest.approx(float(number) * UNITS[unit]), path
