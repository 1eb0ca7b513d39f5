"""Formulas of a framework's table: Python expressions in which ``[key]`` is a configuration's value. Frameworks that
are modules of :mod:`.adapters` have none.

``[key]`` is None where the key is not there or null, ``[key|8]`` is 8 then, and ``[key|1]`` must be a whole number of
at least 1; ``[key:flag|True]`` is read by the reader's ``flag`` (``integer``, ``text``, ``raw``). Beside them stand the
functions of :data:`FUNCTIONS`, the tests of the framework by their names, the reader's ``mean_tokens``,
``real_tokens(samples, cap)`` and ``fitting(tokens, cap)``, and where a formula writes ``value``, and ``keep``, which
leaves the key as it is. Formulas come with rlsim; no configuration reaches them but as a value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.loading.models import card_by_shape, load_card
from rlsim.readers.frameworks.reader import Reader

_KEY = re.compile(r"\[([\w./*-]+)(?::(flag|integer|text|raw))?(?:\|([^\[\]]*))?\]")
KEEP = object()
"""What a formula writes where its key stays as it is."""
MAX_DEVICES = 100_000
"""Largest number of a GPU in a mapping."""
_RANGE = re.compile(r"range\(\s*(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?\s*\)")


def devices(given: Any) -> frozenset[int]:
    """GPUs of a mapping as ROLL writes it: ``list(range(0,8))``, joined by ``+``, or numbers."""
    text = str(given or "")
    ranges = [[int(part) for part in found if part] for found in _RANGE.findall(text)]
    if any(max(found) > MAX_DEVICES for found in ranges):
        raise ValueError(f"more than {MAX_DEVICES} GPUs")
    listed = [int(number) for number in re.findall(r"\d+", "" if ranges else text)]
    return frozenset(listed).union(*(range(*found) for found in ranges))


def flag(given: Any) -> bool:
    """Whether a switch is on: true, also in the words of other loaders."""
    return given is True or str(given).lower() in ("true", "yes", "on", "1")


def first(given: Any, name: str = "") -> Any:
    """The first entry of a list, or what it holds under ``name``; None without one."""
    entry = given[0] if isinstance(given, list) and given else None
    return entry.get(name) if name and isinstance(entry, dict) else entry


def sought(given: Any, *names: str) -> int | None:
    """The largest whole number that any of ``names`` holds in a section or below; None where none does."""
    found, stack = [], [given]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            found += [item[name] for name in names if type(item.get(name)) is int and item[name] > 0]
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return max(found, default=None)


def allocation(given: Any) -> dict[str, dict[str, Any]]:
    """Halves of AReaL's ``sglang:d4p1t1+fsdp:d4``: ``gen`` and ``train`` with their backend and dimensions."""
    out: dict[str, dict[str, Any]] = {}
    text = re.sub(
        r"\((?:attn:)?([^|)]*)\|(?:ffn:)?([^)]*)\)", lambda f: f[1] + "".join(re.findall(r"e\d+", f[2])), str(given)
    )
    for name, part in zip(("gen", "train"), re.split(r"[+|]", text), strict=False):
        found = re.match(r"(?P<backend>[a-z_]+(?=[:(.]))?(?:\.\w+)?:?(?P<dims>(?:[dtpceg]\d+)+)?", part.strip())
        dims = {
            letter: int(number) for letter, number in re.findall(r"([dtpce])(\d+)", (found and found["dims"]) or "")
        }
        out[name] = {"backend": (found and found["backend"]) or "", **dict.fromkeys("dtpce", 1), **dims}
    return out


def spelled(part: Mapping[str, Any], **changed: Any) -> str:
    """A half of an allocation as AReaL writes it, with some of its dimensions changed."""
    new = {**part, **changed}
    dims = "".join(f"{letter}{new[letter]}" for letter in "dtpce" if letter in "dtp" or new[letter] > 1)
    return f"{new['backend']}:{dims}" if new["backend"] else dims


def node_size(gpus: int, per_node: int) -> int:
    """GPUs of a node: as many as the configuration has where they divide all, else the most that do."""
    return gpus if gpus < per_node else math.gcd(gpus, per_node)


def numbered(start: int, end: int) -> str:
    """A mapping of GPUs as ROLL writes it."""
    return f"list(range({start},{end}))"


def experts_of(model: str) -> int:
    """Routed experts of a layer of the card that a checkpoint has by its name; 0 without."""
    found = card_by_shape(model)
    moe = None if found is None else load_card(found[0]).moe
    return 0 if moe is None else moe.num_experts


def teacher_nodes(given: Any) -> int:
    """Nodes of the teachers of NeMo-RL's on-policy distillation that have GPUs of their own (models/policy/
    teacher_worker_group.py:59-105 at 7ea279abf): those of each, one where nothing is said, once for a model."""
    section = given if isinstance(given, dict) else {}
    own = section.get("non_colocated_teachers") or {}
    if not (flag(section.get("enabled")) and flag(own.get("enabled"))):
        return 0
    nodes, models = 0, set()
    usual, special = own.get("default_teacher_cfg") or {}, own.get("teacher_overrides") or {}
    for name, model in (section.get("teacher_model_by_agent_name") or {}).items():
        if model not in models or not flag(section.get("deduplicate_shared_teacher_checkpoints", True)):
            nodes += int({**usual, **(special.get(name) or {})}.get("num_nodes", 1))
        models.add(model)
    return nodes


FUNCTIONS: Mapping[str, Any] = {
    "min": min, "max": max, "int": int, "len": len, "str": str, "any": any, "all": all, "isinstance": isinstance,
    "dict": dict, "list": list, "round": round, "gcd": math.gcd, "ceil": math.ceil, "re_match": re.match,
    "devices": devices, "allocation": allocation, "first": first, "sought": sought, "spelled": spelled,
    "numbered": numbered, "bool_of": flag, "float": float, "node_size": node_size, "keep": KEEP,
    "experts_of": experts_of, "teacher_nodes": teacher_nodes,
}  # fmt: skip


@dataclass(frozen=True)
class Formula:
    """One expression. tests: named tests that it may call."""

    text: str
    tests: Mapping[str, Callable[[Reader], Any]]

    @property
    def keys(self) -> tuple[str, ...]:
        """Configuration keys that it reads."""
        return tuple(dict.fromkeys(found[1] for found in _KEY.finditer(self.text)))

    @cached_property
    def _code(self) -> Any:
        plain = _KEY.sub(lambda found: f"held({found[1]!r}, {found[3] or None}, {found[2]!r})", self.text)
        return compile(plain, self.text, "eval")

    def __call__(self, r: Reader, value: Any = None) -> Any:
        """Its value for a configuration. Raises InputError naming the keys where their values do not fit."""

        seen: list[str] = []

        def held(key: str, default: Any, kind: str | None) -> Any:
            seen.append(key)
            if kind is not None:
                return getattr(r, kind)(*((key,) if default is None else (key, default)))
            if type(default) is int and default == 1:
                return r.size(key)
            found = r.value(key)
            return default if found is None or found == "" else found

        try:
            known = {"mean_tokens": r.mean_tokens, "real_tokens": r.real_tokens, "fitting": r.fitting}
            names = _Names(self.tests, r, held=held, value=value, **known)
            return eval(self._code, {"__builtins__": {}, **FUNCTIONS}, names)
        except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, AttributeError) as error:
            shown = ", ".join(f"{key}={shortened(str(r.value(key)), 60)}" for key in seen)
            raise InputError(f"{r.where}: {shown or self.text}: of a kind that rlsim cannot reckon with") from error


class _Names(dict[str, Any]):
    """Names of an expression: held, value, and a test's outcome by its name."""

    def __init__(self, tests: Mapping[str, Callable[[Reader], Any]], r: Reader, **names: Any) -> None:
        super().__init__(names)
        self._tests, self._r = tests, r

    def __missing__(self, name: str) -> Any:
        return self._tests[name](self._r)
