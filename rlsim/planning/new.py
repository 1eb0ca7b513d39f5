"""A first scenario from five answers: commented, with its assumptions, in a layout that fits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlsim.errors import Infeasible, InputError, shortened
from rlsim.files.lookup import YAML_SUFFIXES, as_path
from rlsim.files.reading import shown_path
from rlsim.files.writing import staged_folder
from rlsim.loading.models import load_card
from rlsim.loading.scenario import scenario_of_text, vary
from rlsim.planning.plan import plan
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
HEADROOM = 0.1
"""Share of memory that the layout leaves free, as ``rlsim plan`` does."""
_BATCH = re.compile(r"(\d{1,8}) *[x*,] *(\d{1,6})")


@dataclass(frozen=True)
class Question:
    """One question. option: of the command line; example: shown as the default."""

    option: str
    text: str
    example: str


QUESTIONS = (
    Question("model", "Which model? A card (rlsim models list), a Hugging Face name or a config.json", "qwen3-8b"),
    Question("hardware", "Which GPUs? A profile (rlsim hardware list)", "h100_sxm"),
    Question("gpus", "How many of them?", "8"),
    Question("batch", "Prompts of a step x samples of each?", "64x16"),
    Question("response-tokens", "Mean length of a response in tokens?", "2000"),
)  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """What was answered, checked. batch: prompts, samples of each."""

    model: str
    hardware: str
    gpus: int
    batch: tuple[int, int]
    response_tokens: int

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Answers:
        """Answers by the option of their question. Raises InputError naming the option."""
        checked = {question.option: CHECKS[question.option](given[question.option]) for question in QUESTIONS}
        return cls(**{name.replace("-", "_"): value for name, value in checked.items()})  # type: ignore[arg-type]


def _whole(option: str) -> Callable[[str], int]:
    def check(text: str) -> int:
        digits = text.strip().replace(",", "").replace("_", "")
        if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) < 10**7:
            raise InputError(f"--{option} {shortened(text)}: must be a whole number above 0 and below 10,000,000")
        return int(digits)

    return check


def _batch(text: str) -> tuple[int, int]:
    found = _BATCH.fullmatch(text.strip())
    if found is None or "0" in (found[1].lstrip("0") or "0", found[2].lstrip("0") or "0"):
        raise InputError(f"--batch {shortened(text)}: must be PROMPTSxSAMPLES, such as 64x16")
    return int(found[1]), int(found[2])


def _model(text: str) -> str:
    load_card(text.strip())
    path = as_path(text.strip(), (*YAML_SUFFIXES, ".json"), None)
    return text.strip() if path is None else str(path.resolve())


def _hardware(text: str) -> str:
    load_profile(text.strip())
    return text.strip()


CHECKS: Mapping[str, Callable[[str], object]] = {
    "model": _model,
    "hardware": _hardware,
    "gpus": _whole("gpus"),
    "batch": _batch,
    "response-tokens": _whole("response-tokens"),
}
"""What each answer must be; InputError otherwise."""


def with_layout(answers: Answers, name: str, folder: Path, engine: str = "vllm") -> str:
    """A scenario file in the layout that ``plan`` finds shortest; folder: what its paths count from.

    Raises InputError and Infeasible as ``plan`` does.
    """
    limits = SearchLimits((answers.gpus,), (0,), HEADROOM, draft_lengths=(0,))
    base = scenario_of_text(_text(answers, name, engine, {}, {}), f"the scenario for {name}", folder)
    recompute: dict[str, int | str] = {}
    try:
        sizes = plan(base, limits=limits).best.overrides
    except (Infeasible, InputError):  # activations may be all that does not fit
        recompute = {"recompute": "full"}
        sizes = plan(vary(base, {"trainer": recompute}), limits=limits).best.overrides
    return _text(answers, name, engine, _sizes(sizes, "engine"), recompute | _sizes(sizes, "trainer"))


def write_new(answers: Answers, target: Path, overwrite: bool = False) -> Scenario:
    """Write a scenario that loads and projects, and return it.

    Its layout is the one that ``plan`` finds shortest among synchronous ones without speculation. Raises InputError
    where the file exists already or a value is out of bounds, and Infeasible where no layout fits.
    """
    if target.exists() and not overwrite:
        raise InputError(f"{shown_path(target)}: exists already; --overwrite replaces it")
    text = with_layout(answers, target.stem, target.parent)
    scenario = scenario_of_text(text, shown_path(target), target.parent)
    with staged_folder(target.parent) as folder:
        (folder / target.name).write_text(text, encoding="utf-8", newline="\n")
    return scenario


def _sizes(overrides: Mapping[str, int], section: str) -> dict[str, int]:
    """Parallel sizes above 1 of a section, by their keys."""
    found = {key.removeprefix(f"{section}."): size for key, size in overrides.items() if key.startswith(f"{section}.")}
    return {key: size for key, size in found.items() if size != 1}


def _cap(answers: Answers) -> int:
    """Cap on prompt and response: the next power of two over ``CAP_FACTOR`` means."""
    return 1 << (CAP_FACTOR * answers.response_tokens + PROMPT_TOKENS - 1).bit_length()


def _text(
    answers: Answers, name: str, engine_name: str, engine: Mapping[str, int], trainer: Mapping[str, int | str]
) -> str:
    """The file."""
    prompts, samples = answers.batch

    def section(key: str, sizes: Mapping[str, int | str]) -> str:
        shown = ", ".join(f"{size}: {value}" for size, value in sizes.items())
        return (
            f"{key}: {{{shown}}}\n"
            if sizes
            else f"# {key}: one GPU holds it; {key}.tensor_parallel: 2 would share it\n"
        )

    own = {} if engine_name == Engine().name else {"name": engine_name}
    model, hardware = json.dumps(answers.model), json.dumps(answers.hardware)
    return f"""\
# Written by rlsim new. Every key: rlsim explain KEY; all of them: rlsim schema.
name: {json.dumps(name)}
question: How long is a synchronous GRPO step of {_plain(answers.model)} on {answers.gpus} {_plain(answers.hardware)}?
model: {model}  # a card, a repository of Hugging Face, a path to config.json, or its keys
hardware: {hardware}  # rlsim hardware show NAME prints its values and their sources
cluster: {{num_gpus: {answers.gpus}}}  # generation and training take turns; the keys *_gpus split them
workload:
  prompts_per_step: {prompts}
  generations_per_prompt: {samples}
  # measured lengths: {{kind: trace, path: lengths.jsonl}}
  response_tokens: {{kind: lognormal, mean_tokens: {answers.response_tokens}, log_sigma: {LOG_SIGMA}}}
  max_sequence_tokens: {_cap(answers)}
{section("engine", own | dict(engine))}{section("trainer", trainer)}\
# To ask what a draft brings, with its acceptance as you measured it:
# speculation: {{method: eagle3, draft_length: 3, acceptance_length: 2.5}}
# To generate while training:
# loop: {{mode: async, policy_lag: 1}}
simulation: {{seed: 0, replications: 8}}
assumptions:
  - text: Log-normal response lengths with sigma {LOG_SIGMA} around the stated mean; measure your own (kind trace).
    keys: [workload.response_tokens]
  - text: The cap is the next power of two over {CAP_FACTOR} mean responses and a prompt.
    keys: [workload.max_sequence_tokens]
  - text: The layout is the one that rlsim plan finds shortest without speculation; yours may differ.
    keys: [engine.tensor_parallel, engine.pipeline_parallel, trainer.tensor_parallel, trainer.pipeline_parallel]
"""


def _plain(name: str) -> str:
    """A name within a plain YAML text."""
    return re.sub(r"[^\w./-]+", " ", name)
