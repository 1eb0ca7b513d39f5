"""How a framework's configuration says the keys of a scenario: rules over its typed options.

A framework is a module of :mod:`.adapters` (the options of a large one are a module ``NAME_options``) and a table
``keys/NAME.yaml`` of the keys that decide nothing. The module has, in this order:

* classes of :class:`~.options.Options` with every key that is read or written, section by section; what several say
  together is a property of the class of the whole, with the line of the framework's source that it rests on;
* ``of = Rules(NAME)`` and ``RULES``, one rule ``of(target).maker(...)`` for each scenario key (:mod:`.targets`) in the
  order of a document; ``when`` is a condition on the configuration, ``otherwise`` what is read without it;
* functions that give the facts beside the rules, the assumptions and the sections that a configuration leaves unused;
* ``FRAMEWORK = of.framework(...)``.

Of the makers take the first that says it: ``same``, ``opposite`` (one key, one meaning), ``constant``, ``words``,
``switched`` (texts and flags with other names), ``cases`` (several keys hold certain values), ``by`` (any reading; the
write is one option, found by solving), ``rule`` (any reading with a write of its own, or none). A reading that gives
None leaves the scenario's default. What is read counts as used by the scenario key, so read behind the conditions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import chain, islice
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

from rlsim.errors import InputError, shortened
from rlsim.parameters.sets import UNNAMED_STACK
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.framework import Framework, Rule, evaluated, tables_of
from rlsim.readers.frameworks.options import Change, Condition, Option, Options
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.targets import Engine, Target, default_of
from rlsim.readers.frameworks.trees import nested
from rlsim.schema.engine import Precision
from rlsim.schema.speculation import Method

C = TypeVar("C", bound=Options)
V = TypeVar("V")
INT4: tuple[tuple[str, Precision], ...] = (
    ("awq", "int4"), ("awq*", "int4"), ("gptq*", "int4"), ("int4*", "int4"), ("w4a16*", "int4"),
)  # fmt: skip
"""What vLLM and SGLang call quantisations to INT4; GPTQ of 8 bits, which its word does not tell, counts as such."""
EXPERTS_IMPLEMENTATION: tuple[tuple[str, Literal["grouped", "loop"]], ...] = (
    ("eager", "loop"), ("grouped_mm", "grouped"), ("batched_mm", "grouped"), ("deepgemm", "grouped"),
)  # fmt: skip
"""Words of transformers for the products of experts (experts_implementation)."""
PACKED_INT4 = ("INT4", "int4", "W4A16", "w4a16", "AWQ", "GPTQ", "Kimi-K2-Thinking", "Kimi-K2.5", "Kimi-K2.6")
"""Words of names of checkpoints with weights in INT4; Moonshot publishes these models so (config.json)."""
FAR = 4 * 720_720
"""Probes of a write lie so far out that lower bounds of a reading do not show, at a multiple of all numbers up to 16,
so that no division of one leaves a remainder."""


UNFITTED = (
    "No steps of {} were fitted; it counts as software that nobody names, with the terms fitted to the RL steps of "
    "others."
)


class Assumption(NamedTuple):
    """A sentence on what an import takes for granted, and the scenario keys that it is of."""

    text: str
    keys: Sequence[str | Target[Any]]


TRANSFORMERS = Assumption(
    "Generation by transformers is simulated as by vLLM, which is several times as fast.", [Engine.name]
)


class Case(NamedTuple, Generic[C, V]):
    """A way of a configuration to say ``value``. holds: what it has then; beside: what is written too."""

    value: V | None
    holds: Sequence[Condition] = ()
    beside: Sequence[Change] = ()
    when: Callable[[C], bool] | None = None


def vllm_method(method: str | None, model: str | None) -> Method | None:
    """How vLLM's speculative_config drafts: heads of the model's own end in mtp, a model alone is a drafter."""
    if method == "eagle":
        return "eagle3"
    if method is not None and method.endswith("mtp"):
        return "mtp"
    return cast(Method | None, method or ("draft_model" if model else None))


def node_size(gpus: int, per_node: int) -> int:
    """GPUs of a node: as many as the configuration has where they divide all, else the most that do."""
    return gpus if gpus < per_node else math.gcd(gpus, per_node)


def spread(gpus: int, per_node: int, nodes: Option[Any], size: Option[Any]) -> list[Change]:
    """The options of so many GPUs on nodes of at most ``per_node``; nothing to write where none are left."""
    node = node_size(gpus, per_node) if gpus > 0 else 0
    return [nodes.to(gpus // node), size.to(node)] if node else []


class For(Generic[C, V]):
    """Makers of rules for one scenario key over the options of one framework."""

    def __init__(
        self, options: type[C], target: Target[V], when: Callable[[C], bool] | None, otherwise: V | None
    ) -> None:
        self.options, self.target, self.when, self.otherwise = options, target.key, when, otherwise

    def rule(
        self, reading: Callable[[C], V | None], writing: Callable[[C, V], Iterable[Change | None]] | None = None
    ) -> Rule[C]:
        """Any reading, and what to write for a value (None among the changes leaves a key as it is)."""
        return Rule(self.target, self.options, reading, writing, self.when, self.otherwise)

    def constant(self, value: V) -> Rule[C]:
        """A value that no key of the configuration changes."""
        return self.rule(lambda _: value)

    def same(self, option: Option[V] | Option[V | None], *, least: int = 0) -> Rule[C]:
        """An option with the meaning of the scenario key; 0 of a whole number without a default says nothing.

        least: smallest number that is written.
        """

        def reading(c: C) -> Any:
            found = option.read(c.r)
            return None if not option.stated and type(found) is int and found == 0 else found

        def writing(c: C, value: Any) -> Iterator[Change]:
            if self.when is None or self.when(c):
                whole = 0 if value is None else value
                yield Change(option.key, max(least, whole) if type(whole) is int else whole)

        return self.rule(reading, writing)

    def opposite(self: For[C, bool], option: Option[bool] | Option[bool | None]) -> Rule[C]:
        """A flag that is off where the scenario's is on."""

        read: Callable[[C], bool | None] = lambda c: None if (off := option.read(c.r)) is None else not off  # noqa: E731
        return self.rule(read, lambda _, value: [Change(option.key, not value)])

    def switched(
        self, option: Option[bool], on: V | None, off: V, *, also_on: Sequence[V] = (), readonly: bool = False
    ) -> Rule[C]:
        """A flag whose two states the scenario has words for. also_on: words that are written as ``on``, too."""

        def writing(_: C, value: V) -> list[Change | None]:
            return [Change(option.key, value != off) if value == off or value in (on, *also_on) else None]

        return self.rule(lambda c: on if option.read(c.r) else off, None if readonly else writing)

    def words(
        self,
        option: Option[str] | Option[str | None],
        *meanings: tuple[str | None, V | None],
        other: V | None = None,
        readonly: bool = False,
    ) -> Rule[C]:
        """Words of the configuration with the scenario's, in the order of asking.

        A ``*`` stands for any characters; None for no word at all, which is only written. Of several words without a
        ``*`` for one meaning the first is written. other: meaning of all further words; without it they are an error,
        and capitals make no difference.
        """

        def reading(c: C) -> V | None:
            given = option.read(c.r) or ""
            word = given if other is not None else given.lower()
            for pattern, meaning in meanings:
                if pattern is not None and fnmatchcase(word, pattern if other is not None else pattern.lower()):
                    return meaning
            if word and other is None:
                known = ", ".join(pattern for pattern, _ in meanings if pattern is not None)
                raise InputError(f"{c.r.where}: {option.key}: '{shortened(word)}' is not simulated; known: {known}")
            return other

        written = [(word, meaning) for word, meaning in meanings if word is None or not set(word) & {"*", "?"}]

        def writing(_: C, value: V) -> list[Change]:
            return [Change(option.key, word) for word, meaning in written if meaning == value][:1]

        return self.rule(reading, None if readonly else writing)

    def cases(self, *cases: Case[C, V], readonly: bool = False) -> Rule[C]:
        """The first case that holds, else the last."""

        def possible(c: C) -> list[Case[C, V]]:
            return [case for case in cases if case.when is None or case.when(c)]

        def reading(c: C) -> V | None:
            *first, last = possible(c)
            return next((case for case in first if all(one.met(c.r) for one in case.holds)), last).value

        def writing(c: C, value: V) -> Iterator[Change]:
            for case in [case for case in possible(c) if case.value == value][:1]:
                # What already holds stays in the user's own words.
                yield from (one.change for one in case.holds if not one.met(c.r))
                yield from case.beside

        return self.rule(reading, None if readonly else writing)

    def by(self, option: Option[Any], reading: Callable[[C], V | None]) -> Rule[C]:
        """Any reading that ``option`` alone can give every value of: what to write is found by solving for it."""
        plain = self.rule(reading)
        return replace(plain, writing=lambda c, value: solved(plain, option, value, c.r))


class Rules(Generic[C]):
    """Makers of rules over the options of one framework: ``of(target)`` has those for a scenario key."""

    def __init__(self, options: type[C]) -> None:
        self.options = options

    def __call__(
        self, target: Target[V], *, when: Callable[[C], bool] | None = None, otherwise: V | None = None
    ) -> For[C, V]:
        """Makers of rules for a scenario key, which hold where ``when`` does; ``otherwise`` is read without it."""
        return For(self.options, target, when, otherwise)

    def under(self, switch: Option[bool], rule: Rule[C], otherwise: Any = None) -> Rule[C]:
        """A rule that holds where a switch is on, which is turned off for None."""

        def writing(c: C, value: Any) -> Iterator[Change | None]:
            yield switch.to(value is not None)
            if value is not None and rule.writing is not None:
                yield from rule.writing(c, value)

        def reading(c: C) -> Any:
            return rule.reading(c) if switch.read(c.r) else otherwise

        return replace(rule, reading=reading, writing=writing)

    def either(self, *rules: Rule[C]) -> Rule[C]:
        """The first rule whose condition holds; where none does nothing is read or written."""

        def chosen(c: C) -> Iterator[Rule[C]]:
            return islice((rule for rule in rules if rule.when is None or rule.when(c)), 1)

        def reading(c: C) -> Any:
            return next((rule.reading(c) for rule in chosen(c)), None)

        def writing(c: C, value: Any) -> Iterator[Change | None]:
            for rule in chosen(c):
                yield from () if rule.writing is None else rule.writing(c, value)

        return Rule(rules[0].target, self.options, reading, writing)

    def framework(
        self,
        name: str,
        rules: Sequence[Rule[C]],
        facts: Callable[[C], Facts],
        assumptions: Callable[[C], Iterable[Assumption]],
        *,
        model: Option[str],
        node_size: Option[int] | Option[int | None],
        shipped: Mapping[str, Sequence[str]],
        entry: Mapping[str, Mapping[str, str]],
        unused: Callable[[C, Mapping[str, Any]], Iterable[str]] = lambda c, scenario: (),
        borrowed: str = "",
        **launch: Any,
    ) -> Framework:
        """The framework; see :class:`~.framework.Framework` for what ``launch`` may hold.

        borrowed: its name, where its trainer takes the terms fitted to the steps of others.
        """

        def complete(r: Reader) -> Facts:
            name, found = model.read(r), facts(self.options(r))
            stack = (("stack", UNNAMED_STACK),) if borrowed else ()
            return replace(
                found, model=name, model_key=found.model_key or model.key, settings=(*stack, *found.settings)
            )

        def assumed(r: Reader) -> list[dict[str, Any]]:
            found = evaluated(r, "", lambda: list(assumptions(self.options(r))))
            first = [Assumption(UNFITTED.format(borrowed), ["stack"])] if borrowed else []
            return [{"text": one.text, "keys": [str(key) for key in one.keys]} for one in (*first, *found)]

        return Framework(
            name=name,
            rules=rules,
            declared=frozenset(option.key for option in self.options.every() if option.decides),
            facts=lambda r: evaluated(r, "", lambda: complete(r)),
            assumed=assumed,
            unused=lambda r, scenario: evaluated(r, "", lambda: list(unused(self.options(r), scenario))),
            model=model.key,
            node_size=node_size.key,
            shipped=shipped,
            entry=entry,
            **{"start": next(iter(shipped.values())), **tables_of(name), **launch},
        )


def solved(rule: Rule[C], option: Option[Any], value: Any, r: Reader) -> list[Change]:
    """The change of ``option`` with which ``rule`` reads ``value``: that itself, or what a proportional or linear
    reading would need; else one with which it says nothing, where ``value`` is the scenario's default."""

    def found(given: Any) -> Any:
        try:
            return rule.read(r.changed(nested({option.key: given})))
        except InputError:
            return None

    number = isinstance(value, int | float) and not isinstance(value, bool)
    probed = list(_probed(found, value)) if number and found(value) != value else []
    # Generators, since each try evaluates the whole rule, and the first that fits is enough.
    first = (given for given in (value, *probed) if found(given) == value)
    # A switch may have a meaning that is no switch's, such as the bytes of an optimizer.
    switched = (given for given in (True, False) if not isinstance(value, bool) and found(given) == value)
    unsaid = (given for given in (*probed, value) if found(given) is None and default_of(rule.target) == value)
    for given in islice(chain(first, switched, unsaid), 1):
        return [option.to(option.read(r.changed(nested({option.key: given}))))]  # a whole number where it reads one
    return []


def _probed(found: Callable[[int], Any], value: float) -> Iterator[int]:
    """Whole numbers for which a reading would give ``value`` were it a line through two probes, far out or near."""
    # A reading with an upper bound is flat far out: then the near probe tells its slope.
    for far in (FAR, 1):
        step = max(1, round(abs(value))) * far
        low, high = found(step), found(2 * step)
        if isinstance(low, int | float) and isinstance(high, int | float) and low != high:
            # Fractions: far out the rounding of floats would move the whole number that is sought.
            given = step + (Fraction(value) - Fraction(low)) * step / (Fraction(high) - Fraction(low))
            yield from dict.fromkeys((round(given), math.floor(given), math.ceil(given)))
