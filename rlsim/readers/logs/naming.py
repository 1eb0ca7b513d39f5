"""Which metrics of a log are which phase of a step: the names of each framework, as ``names.yaml`` lists them."""

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

from msgspec import Struct

from rlsim.files.yaml import lists_beside

Quantity = Literal[
    "step", "generation", "exposed_generation", "logprob", "train", "refit", "data",
    "prompt_tokens", "response_tokens", "acceptance_length",
    "turns", "cut_share", "running_sequences", "kv_use", "memory_gib", "samples", "trainer_idle",
    "trainer_step",
]  # fmt: skip
PHASES: tuple[Quantity, ...] = ("step", "generation", "exposed_generation", "logprob", "train", "refit", "data")
FACTS: tuple[Quantity, ...] = ("prompt_tokens", "response_tokens", "acceptance_length", "turns")
"""What is above 0 in every run, and describes its work."""
CHECKED: tuple[Quantity, ...] = (*PHASES, "response_tokens", "acceptance_length", "running_sequences")
"""What the catalogue of faults knows as a phase or a figure of a run."""
LESS = "-"
"""Before a metric that is taken off its quantity."""
ENGINE = "engine"
TIMER = "profiling/"
"""Before the timers of trl's profiler."""
OTHER = "orchestrator/"
"""Before the metrics of a process beside the trainer that calls them as the trainer calls its own."""
_UNIT = re.compile(r"^(.*?)(?:_(ms|s|sec|secs|seconds)|\s*[\[(](ms|s|sec|seconds)[\])])$")
_LOGGED = "train/"
"""Prefix that the loggers of transformers and OpenRLHF put before every metric."""


class Naming(Struct, frozen=True):
    """The metrics of a log that make up its quantities. signs: of each metric; waits: generation is what the loop
    waits for; aside: metrics of validation and checkpoints."""

    framework: str
    metrics: Mapping[str, tuple[str, ...]]
    waits: bool
    aside: tuple[str, ...]


def naming_of(metrics: Sequence[str]) -> Naming:
    """The framework whose phases most of ``metrics`` tell, and which they are; facts also by names of others."""
    present = _present(metrics)
    found = {name: _rows_in(entry["rows"], present) for name, entry in _frameworks().items()}
    framework = max(found, key=lambda name: sum(quantity in found[name] for quantity in PHASES))
    out = dict(found[framework])
    for rows in found.values():
        # Phases are one framework's alone: another's names may hold the same seconds, cut otherwise.
        out |= {quantity: names for quantity, names in rows.items() if quantity not in (*out, *PHASES)}
    entry = _frameworks()[framework]
    waits = any(name in {present.get(each) for each in entry.get("waits", ())} for name in out.get("generation", ()))
    aside = tuple(present[name] for name in entry.get("aside", ()) if name in present)
    return Naming(framework, out, waits, aside)


def scale_of(metric: str) -> float:
    """Seconds of one unit of a metric that names its unit."""
    found = _UNIT.match(metric)
    return 1e-3 if found is not None and "ms" in found.groups() else 1.0


@cache
def known_metrics() -> frozenset[str]:
    """Every metric that some framework's rows name."""
    rows = [row for entry in _frameworks().values() for row in entry["rows"]]
    aside = [name for entry in _frameworks().values() for name in entry.get("aside", ())]
    return frozenset([*(name.removeprefix(LESS) for row in rows for name in row[1:]), *aside])


@lru_cache(maxsize=2**15)  # every row of a log has the same names
def canonical(metric: str) -> str | None:
    """The metric of a framework that a name stands for: with a unit, behind a logger's prefix, or as Prometheus spells
    it; None of unknown ones."""
    bare = metric.strip()
    for name in (bare, bare.removeprefix(_LOGGED)):
        if name in known_metrics():
            return name
        unit = _UNIT.match(name)
        if unit is not None and unit[1] in known_metrics():
            return unit[1]
    # Ray's exporter puts ray_ before whatever is counted through it.
    return _spelled().get(bare.removeprefix("ray_"))


def of_one_process(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics of a row, those of a process beside the trainer under names of their own."""
    names = next((names for sign, names in _others() if sign in row), None)
    return row if names is None else {f"{OTHER}{key}" if key in names else key: row[key] for key in row}


@cache
def _others() -> tuple[tuple[str, Sequence[str]], ...]:
    """Metrics that another process tells, each with the names that it shares with the trainer."""
    return tuple(pair for entry in _frameworks().values() for pair in entry.get("others", {}).items())


@cache
def line_names() -> Mapping[str, str]:
    """Metrics by what consoles print for them: NeMo-RL's lines carry the names of its timers alone."""
    out = {name.rpartition("timing/train/")[2]: name for name in known_metrics() if name.startswith("timing/train/")}
    return out | {text: name for entry in _frameworks().values() for text, name in entry.get("lines", {}).items()}


@cache
def words() -> Mapping[str, str]:
    """Metrics by what people call a phase in tables of their own, in small letters."""
    listed: Mapping[str, Sequence[str]] = lists_beside(__file__)["words"]
    return {word: metric for metric, names in listed.items() for word in (metric, *names)}


def frameworks() -> tuple[str, ...]:
    """Frameworks whose names are known."""
    return tuple(name for name in _frameworks() if name != ENGINE)


def _frameworks() -> Mapping[str, Mapping[str, Any]]:
    listed: Mapping[str, Mapping[str, Any]] = lists_beside(__file__)["frameworks"]
    return listed


@cache
def _spelled() -> Mapping[str, str]:
    """Metrics by their names with underscores for all that Prometheus refuses."""
    return {re.sub(r"[^\w:]", "_", name): name for name in known_metrics() if "/" in name}


def _present(metrics: Sequence[str]) -> dict[str, str]:
    """Names of the log by the metric they stand for; exact names first."""
    out: dict[str, str] = {}
    for name in sorted(metrics, key=lambda name: name not in known_metrics()):
        known = canonical(name)
        if known is not None:
            out.setdefault(known, name)
    return out


def _rows_in(rows: Sequence[Sequence[str]], present: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    out: dict[str, tuple[str, ...]] = {}
    for quantity, *names in rows:
        if names[0] in present and quantity not in out:
            signed = [(LESS if name.startswith(LESS) else "", name.removeprefix(LESS)) for name in names]
            out[quantity] = tuple(dict.fromkeys(sign + present[name] for sign, name in signed if name in present))
    return out
