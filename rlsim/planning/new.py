"""A first scenario from five answers: commented, with its assumptions, in a layout that fits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from string import Template

from msgspec import Struct
from msgspec.structs import asdict

from rlsim.errors import Infeasible, InputError, shortened
from rlsim.files.lookup import YAML_SUFFIXES, as_path
from rlsim.files.reading import shown_path
from rlsim.files.writing import staged_folder
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import load_card
from rlsim.loading.scenario import scenario_of_text, vary
from rlsim.planning.plan import best_overrides
from rlsim.planning.space import SearchLimits
from rlsim.schema.engine import Engine
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import load_profile

CAP_FACTOR = 4
"""The cap over the mean response: log-normal lengths with sigma 0.8 exceed four times their mean in 1 of 50 samples
(P(z > (ln 4 + 0.32) / 0.8)). Assumption."""
LOG_SIGMA = 0.8
"""Standard deviation of the logarithm of lengths: that of the quickstart. Assumption."""
PROMPT_TOKENS = 256
"""Room for a prompt under the cap."""
QUESTIONS: Mapping[str, Mapping[str, str]] = lists_beside(__file__)["questions"]
"""What is asked by the option that answers it: text, and an example that is shown as the default."""
# As many digits as the largest prompts_per_step and generations_per_prompt of the schema have.
_BATCH = re.compile(r"(\d{1,8}) *[x*,] *(\d{1,6})")


class Turns(Struct, frozen=True):
    """Of an agent in the mean: turns, tokens that its environment answers to each but the last, seconds it takes."""

    mean_turns: float
    observation_tokens: int
    environment_s: float


class Answers(Struct, frozen=True):
    """Checked answers to the questions. batch: prompts, samples of each; turns: where responses are turns of agents."""

    model: str
    hardware: str
    gpus: int
    batch: tuple[int, int]
    response_tokens: int
    turns: Turns | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Answers:
        """Answers by the option of their question. Raises InputError naming the option."""
        return cls(**{name.replace("-", "_"): CHECKS[name](given[name]) for name in QUESTIONS})  # type: ignore[arg-type]


def _whole_number(option: str, text: str) -> int:
    digits = text.strip().replace(",", "").replace("_", "")
    # isdigit() alone takes superscripts too, which int() refuses.
    if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) < 10**7:
        raise InputError(f"--{option} {shortened(text)}: must be a whole number above 0 and below 10,000,000")
    return int(digits)


def _batch(text: str) -> tuple[int, int]:
    found = _BATCH.fullmatch(text.strip())
    if found is None or not int(found[1]) or not int(found[2]):
        raise InputError(f"--batch {shortened(text)}: must be PROMPTSxSAMPLES, such as 64x16")
    return int(found[1]), int(found[2])


def whole_path(model: str) -> str:
    """A model as it is named anywhere: a file by its whole path."""
    path = as_path(model, (*YAML_SUFFIXES, ".json"), None)
    return model if path is None else str(path.resolve())


def _model(text: str) -> str:
    load_card(text.strip())
    return whole_path(text.strip())


def _hardware(text: str) -> str:
    load_profile(text.strip())
    return text.strip()


CHECKS: Mapping[str, Callable[[str], object]] = {
    "model": _model,
    "hardware": _hardware,
    "gpus": partial(_whole_number, "gpus"),
    "batch": _batch,
    "response-tokens": partial(_whole_number, "response-tokens"),
}
"""What each answer must be; InputError otherwise."""


def plain_limits(gpus: int) -> SearchLimits:
    """Synchronous plans of one size without speculation."""
    return SearchLimits((gpus,), (0,), draft_lengths=(0,))


def with_layout(answers: Answers, name: str, folder: Path, engine: str = "vllm") -> str:
    """A scenario file in the layout that ``plan`` finds shortest; folder: what its paths count from.

    Raises InputError and Infeasible as ``plan`` does.
    """
    limits = plain_limits(answers.gpus)
    own = {} if engine == Engine().name else {"name": engine}
    base = scenario_of_text(scenario_text(answers, name, own, {}), f"the scenario for {name}", folder)
    recompute: dict[str, int | str] = {}
    try:
        sizes = best_overrides(base, limits)
    except (Infeasible, InputError):  # activations may be all that does not fit
        recompute = {"recompute": "full"}
        sizes = best_overrides(vary(base, {"trainer": recompute}), limits)
    return scenario_text(answers, name, {**own, **_sizes(sizes, "engine")}, {**recompute, **_sizes(sizes, "trainer")})


def write_new(answers: Answers, target: Path, overwrite: bool = False) -> Scenario:
    """Write a scenario that loads and projects, and return it.

    Its layout is the one that ``plan`` finds shortest among synchronous ones without speculation. Raises InputError
    where the file exists already or a value is out of bounds, and Infeasible where no layout fits.
    """
    if target.exists() and not overwrite:
        raise InputError(f"{shown_path(target)}: exists already; --overwrite replaces it")
    text = with_layout(answers, target.stem, target.parent)
    # Loaded before it is written, so that no file stays behind that does not load.
    scenario = scenario_of_text(text, shown_path(target), target.parent)
    with staged_folder(target.parent) as folder:
        (folder / target.name).write_text(text, encoding="utf-8", newline="\n")
    return scenario


def _sizes(overrides: Mapping[str, object], section: str) -> dict[str, int]:
    """Parallel sizes above 1 of a section, by their keys."""
    split = ((key.partition("."), size) for key, size in overrides.items())
    return {name: size for (head, _, name), size in split if head == section and isinstance(size, int) and size != 1}


def scenario_text(
    answers: Answers, name: str, engine: Mapping[str, int | str], trainer: Mapping[str, int | str]
) -> str:
    """The file; engine, trainer: keys of these sections."""

    def section(key: str, keys: Mapping[str, int | str]) -> str:
        shown = ", ".join(f"{size}: {value}" for size, value in keys.items())
        return f"{key}: {{{shown}}}" if keys else f"# {key}: one GPU holds it; {key}.tensor_parallel: 2 would share it"

    model, hardware, turns = answers.model, answers.hardware, answers.turns
    agent, assumed = "# agents: rlsim explain workload.agent; rlsim traces FILE fits it to trajectories", ""
    mean_tokens: float = answers.response_tokens
    if turns is not None:
        parts = lists_beside(__file__)["agent"]
        agent, assumed = (Template(parts[part]).substitute(asdict(turns)).rstrip() for part in ("keys", "assumed"))
        mean_tokens = turns.mean_turns * (answers.response_tokens + turns.observation_tokens)
    text = Template(lists_beside(__file__)["scenario"]).substitute(
        asdict(answers),
        # A text of JSON is one of YAML too, whatever quotes or colons a path holds.
        name=json.dumps(name),
        model=json.dumps(model),
        hardware=json.dumps(hardware),
        plain_model=_plain(model),
        plain_hardware=_plain(hardware),
        prompts=answers.batch[0],
        samples=answers.batch[1],
        # The next power of two over CAP_FACTOR means and a prompt.
        cap=1 << (round(CAP_FACTOR * mean_tokens) + PROMPT_TOKENS - 1).bit_length(),
        cap_factor=CAP_FACTOR,
        log_sigma=LOG_SIGMA,
        agent=agent,
        assumed=assumed,
        engine=section("engine", engine),
        trainer=section("trainer", trainer),
    )
    return f"{text.rstrip()}\n"


def _plain(name: str) -> str:
    """A name within a plain YAML text."""
    return re.sub(r"[^\w./-]+", " ", name)
