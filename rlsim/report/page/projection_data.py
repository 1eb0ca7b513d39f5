"""A projection as its folder holds it: projection.json, and what scenario.yaml adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from rlsim.errors import InputError
from rlsim.files.yaml import read_yaml
from rlsim.report.page.folder import file_in, needed_file
from rlsim.report.text.findings import NOTABLE_SHARE, SYNC_PHASES
from rlsim.results.projection import About, Projection

SCENARIO_BYTES = 2**18
"""Largest scenario.yaml that is looked into; a resolved scenario has 18 KiB."""
Answer = TypeVar("Answer", bound=About)


def read_projection(folder: Path, notes: list[str]) -> Projection:
    """The projection in ``folder``; what is wrong with files that it can do without goes into ``notes``.

    Where no scenario.yaml says the mode, phases that exceed their step do: generation then runs beside the trainer.
    """
    answer = Projection.read(needed_file(folder, "projection.json"))
    for side in (answer.baseline, answer.candidate):
        if side.step_s.mean <= 0:
            raise InputError("projection.json: 'step_s' must have a mean above 0")
    answer = with_scenario(answer, folder, notes)
    if answer.mode:
        return answer
    arm = answer.candidate
    rest_s = sum(arm.phases[name].mean for name in SYNC_PHASES) - arm.step_s.mean
    beside = abs(rest_s) > 2 * NOTABLE_SHARE * arm.step_s.mean
    return answer.model_copy(update={"mode": "async" if beside else "sync"})


def with_scenario(answer: Answer, folder: Path, notes: list[str]) -> Answer:
    """The answer with what scenario.yaml says; as it is where there is none, or where ``notes`` says what is wrong."""
    try:
        path = file_in(folder, "scenario.yaml")
        if path is None:
            return answer
        if path.stat().st_size > SCENARIO_BYTES:
            raise InputError(f"{path.name}: is larger than {SCENARIO_BYTES // 2**10} KiB")
        return answer.model_copy(update=_about(read_yaml(path), path.name))
    except InputError as error:
        notes.append(str(error))
        return answer


def _about(document: Any, name: str) -> dict[str, Any]:
    """What a scenario says that its answer does not repeat."""
    found = {"question": ("question",), "mode": ("loop", "mode"), "num_gpus": ("cluster", "num_gpus")}
    found |= {"model": ("model", "name"), "hardware": ("hardware", "name")}
    values = {}
    for field, keys in found.items():
        value = document
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            values[field] = value
    try:
        About.model_validate(values, strict=True)
        return values
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"{name}: '{'.'.join(found[str(first['loc'][0])])}': {first['msg']}") from None


def where(answer: About) -> str:
    """``2,048 gb200_nvl72``; nothing where the scenario is not known."""
    return f"{answer.num_gpus:,} {answer.hardware}" if answer.num_gpus and answer.hardware else ""
