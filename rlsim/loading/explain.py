"""What a scenario key means, where its default comes from, and what it is in a scenario."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from pydantic import BaseModel

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import lists_beside
from rlsim.loading.document import REFERENCES
from rlsim.loading.overrides import Places, prefixes, value_at
from rlsim.loading.scenario import load_scenario, places_of
from rlsim.loading.variation import WORDS
from rlsim.report.style import Style
from rlsim.schema.keys import Key, all_keys, as_yaml, keys_named
from rlsim.schema.messages import unknown_key
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import StackFeatures

_ONLY_PRINTED = ("name", "question", "assumptions", "missing")
_LISTS = lists_beside(__file__, "explain.yaml")
ONE_STEP: tuple[str, ...] = tuple(_LISTS["one_step"])
"""Commands that simulate steps of a scenario."""
_SEARCHED: frozenset[str] = frozenset(_LISTS["searched"])
"""Keys whose values rlsim plan chooses itself."""
_SETS: Mapping[str, str] = _LISTS["sources"]
"""Where sections come from that a file usually names instead of writing them out."""
_RESOLVED: Mapping[str, Callable[[Scenario], object]] = {
    **{f"trainer.{name}": attrgetter(f"training_features.{name}") for name in StackFeatures.model_fields},
    **{key: attrgetter(path) for key, path in _LISTS["resolved"].items()},
    "cluster.placement": lambda s: "aligned" if s.rack_aligned else "scattered",
    "trainer.global_batch_samples": lambda s: s.trainer.global_batch_samples or s.workload.samples_per_step,
    "simulation.steps": lambda s: len(s.measured_steps),
}
"""What keys that are left open become."""
MOST_BELOW = 40
"""Keys listed below a section."""


@dataclass(frozen=True)
class Current:
    """A key in a scenario. value: as YAML; origin: what set it; resolved: what a value left open becomes."""

    scenario: str
    value: str
    origin: str
    resolved: str


@dataclass(frozen=True)
class Explanation:
    """What a key means. kinds: one for each record that can hold it. source: of its default.

    commands: that use it. below: keys of a section. current: in the scenario that was named. word: the
    meaning of what is no key but stands for several.
    """

    key: str
    kinds: tuple[Key, ...]
    source: str
    commands: tuple[str, ...]
    searched: bool
    below: tuple[str, ...]
    current: Current | None
    word: str = ""


def explain(key: str, scenario: str | None = None, overrides: Sequence[str] = ()) -> Explanation:
    """Explain the dotted key; scenario: file or name whose value is printed, under ``overrides``.

    Raises InputError with the nearest key where there is none of that name.
    """
    if key in WORDS:
        return Explanation(key, (), "", ("sweep", "every command that takes KEY=VALUE"), False, (), None, WORDS[key])
    kinds = keys_named(key)
    if not kinds:
        raise InputError(unknown_key(key, Scenario))
    below = tuple(dict.fromkeys(one.dotted for one in all_keys() if one.dotted.rpartition(".")[0] == key))
    current = None if scenario is None else _current(key, scenario, overrides)
    section = key.partition(".")[0]
    commands = () if section in _ONLY_PRINTED else ("run",) if section == "run" else ONE_STEP
    return Explanation(key, kinds, _source(kinds[0]), commands, key in _SEARCHED, below, current)


def _source(key: Key) -> str:
    """Where the default of a key comes from."""
    named = next((_SETS[prefix] for prefix in reversed(prefixes(key.dotted)) if prefix in _SETS), None)
    if named is not None:
        return named
    if key.default is None:
        return "none: it must be given"
    if key.section:
        return "the defaults of its keys"
    if key.default == "null":
        return key.default_told or "left out unless given"
    return "the schema: a choice, unless the description names what it rests on"


def _current(key: str, name: str, overrides: Sequence[str]) -> Current:
    scenario, places = load_scenario(name, overrides), places_of(name, overrides)
    value = value_at(scenario, key)
    resolved = _RESOLVED[key](scenario) if value is None and key in _RESOLVED else None
    return Current(scenario.name, _shown(value), _origin(key, places), "" if resolved is None else as_yaml(resolved))


def _shown(value: object) -> str:
    if isinstance(value, BaseModel):
        own = getattr(value, "name", "")
        return f"{own} (a section)" if own else "a section"
    if isinstance(value, tuple):
        return shortened(f"[{', '.join(_shown(one) for one in value)}]", 100)
    return shortened(as_yaml(value), 100)


def _origin(key: str, places: Places) -> str:
    """What set a key: an override, a place in a file, what a reference names, or nothing."""
    set_by = [setting.text for setting in places.given if f"{key}.".startswith(f"{setting.key}.")]
    if set_by:
        return f"the override {shortened(set_by[-1])}"
    # The nearest section first: what a reference names counts only where nothing nearer sets the key.
    for prefix in reversed(prefixes(key)):
        place = places.exact(prefix)
        if place is not None and (prefix == key or prefix in REFERENCES):
            return f"{places.where}, {place}" if place.startswith("line") else place
    return "the default"


def render_explanation(answer: Explanation, style: Style) -> str:
    """The explanation for a terminal."""
    lines = [style.bold(answer.key)]
    if answer.word:
        return "\n".join([*lines, *style.wrapped(answer.word, "  "), f"  used by: {', '.join(answer.commands)}"])
    for kind in answer.kinds:
        label = f"  {kind.record}: " if len(answer.kinds) > 1 else "  "
        lines += style.wrapped(kind.description or "Names the kind of the section.", label, 4)
        lines += style.wrapped(f"type: {kind.kind}{f'; {kind.bounds}' if kind.bounds else ''}", "    ")
        lines += style.wrapped(f"default: {'required' if kind.default is None else kind.default}", "    ")
    lines += style.wrapped(f"default from: {answer.source}", "    ")
    used = ", ".join(answer.commands) or "no command; it is printed with the answer"
    searched = "; plan chooses it itself" if answer.searched else ""
    lines += style.wrapped(f"used by: {used}{searched}", "    ")
    if answer.current is not None:
        current = answer.current
        open_value = f", which becomes {current.resolved}" if current.resolved else ""
        lines += style.wrapped(f"in {current.scenario}: {current.value}{open_value} (from {current.origin})", "    ")
    if answer.below:
        more = f" and {len(answer.below) - MOST_BELOW} more" if len(answer.below) > MOST_BELOW else ""
        names = ", ".join(one.rpartition(".")[2] for one in answer.below[:MOST_BELOW])
        lines += style.wrapped(f"keys: {names}{more}", "    ")
    return "\n".join(lines)
