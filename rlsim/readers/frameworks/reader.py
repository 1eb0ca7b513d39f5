"""Typed values of a framework's configuration, its interpolations (``${a.b}``, ``${mul:${a.b}, 2}``), resolved by
OmegaConf within bounds, and formulas of a framework's table: Python expressions in which ``[key]`` is a configuration's
value.

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
from rlsim.readers.frameworks.trees import ConfigTree, lookup

_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
"""Texts that the frameworks' YAML 1.1 loaders take for true and false."""


MAX_EXPANSION = 200
"""References that one value may lead to, through others; strings that double at each step end here, not memory."""
MAX_DEPTH = 40
"""References that may follow each other from one value on."""
RESOLVERS: Mapping[str, Callable[..., Any]] = {
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) and a % b == 0 else a / b,
    "max": lambda *given: max(given),
    "min": lambda *given: min(given),
}
"""Resolvers that NeMo-RL's loader registers (mul, max) and their companions; OmegaConf brings those below."""
BUILT_IN = ("oc.env", "oc.select")
_START = re.compile(r"\$\{")
_NAME = re.compile(r"\s*([^${}:,]*)")


class Reader:
    """Typed values of a configuration, interpolations resolved; it remembers which keys were asked for, and where these
    led.

    Every getter gives ``default`` where the key is not there or null, and raises InputError naming file and key where
    its value is of another kind. mean_tokens: mean sample with its prompt, where it is known beside the configuration.
    Keys that nobody asks for are never resolved: they may refer to what is not there, such as ``${hydra:...}``.
    """

    def __init__(self, tree: ConfigTree, mean_tokens: float | None = None) -> None:
        self.where = tree.where
        self.mean_tokens = mean_tokens
        self.read: set[str] = set()
        self._tree = tree
        self._config: Any = None
        self._costs: dict[str, int] = {}

    def value(self, key: str) -> Any:
        """The resolved value, None where it is not there. Raises InputError where it cannot be resolved."""
        holder = self._holder(key)
        if not _interpolated(lookup(self._tree.values, holder)):
            return self.raw(key)
        self.read.add(key)
        self._check(holder, ())
        return self._resolve(key)

    def raw(self, key: str) -> Any:
        """What a key holds, references unresolved."""
        self.read.add(key)
        return lookup(self._tree.values, key)

    def integer(self, key: str, default: int = 0) -> int:
        """A whole number; 8.0 counts as 8."""
        found = self.value(key)
        whole = int(found) if isinstance(found, float) and found.is_integer() else found
        return default if found is None else int(self._of_kind(key, whole, int, "a whole number"))

    def real_tokens(self, samples: int, cap: int) -> int:
        """Tokens of a micro-batch of so many samples without padding: mean ones, and at least one of ``cap``."""
        return max(cap, round(samples * (self.mean_tokens or cap)))

    def fitting(self, tokens: int, cap: int) -> int | None:
        """Samples of which a micro-batch without padding has so many tokens; None where no number of them has."""
        samples = max(1, round(tokens / (self.mean_tokens or cap)))
        return samples if self.real_tokens(samples, cap) == tokens else None

    def size(self, key: str) -> int:
        """A whole number of at least 1; 1 where it is not there."""
        found = self.integer(key, 1)
        if found < 1:
            raise self.error(key, "must be a whole number of at least 1", found)
        return found

    def number(self, key: str, default: float = 0.0) -> float:
        """A number."""
        found = self.value(key)
        return default if found is None else float(self._of_kind(key, found, int | float, "a number"))

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false, also as YAML 1.1 writes them."""
        found = self.value(key)
        meant = _WORDS.get(found.lower(), found) if isinstance(found, str) else found
        return default if found is None else bool(self._of_kind(key, meant, bool, "true or false"))

    def _of_kind(self, key: str, found: Any, kind: Any, wanted: str) -> Any:
        if not isinstance(found, kind) or isinstance(found, bool) != (kind is bool):
            raise self.error(key, f"must be {wanted}", found)
        return found

    def text(self, key: str, default: str = "") -> str:
        """A text."""
        found = self.value(key)
        if found is None:
            return default
        if not isinstance(found, str) or found == "???":
            raise self.error(key, "must be given" if found == "???" else "must be text", found)
        return found

    def error(self, key: str, problem: str, found: Any) -> InputError:
        """That a key holds what it must not."""
        return InputError(f"{self.where}: {key}: {problem}, got {shortened(repr(found))}")

    def _resolve(self, key: str) -> Any:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            if self._config is None:
                for name, resolver in RESOLVERS.items():
                    if not OmegaConf.has_resolver(name):
                        OmegaConf.register_resolver(name, resolver, annotation_validation="off")
                self._config = OmegaConf.create(self._tree.values)
            found = OmegaConf.select(self._config, key)
            return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
        except (OmegaConfBaseException, RecursionError, ArithmeticError, TypeError, ValueError) as error:
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise self._error(key, f"cannot be resolved ({shortened(problem, 120)})") from error

    def _check(self, key: str, path: tuple[str, ...]) -> int:
        """References that ``key`` leads to. Raises InputError for circles, unknown resolvers and explosions."""
        if key in path:
            raise self._error(path[0], f"refers to itself through '{shortened(key)}'")
        if len(path) > MAX_DEPTH:
            raise self._error(path[0], f"leads through more than {MAX_DEPTH} references in a row")
        if key not in self._costs:
            self._costs[key] = self._count(lookup(self._tree.values, key), key, (*path, key))
        if self._costs[key] > MAX_EXPANSION:
            raise self._error((*path, key)[0], f"leads to more than {MAX_EXPANSION} references")
        return self._costs[key]

    def _count(self, held: Any, key: str, path: tuple[str, ...]) -> int:
        if isinstance(held, dict):
            return sum(self._check(f"{key}.{name}", path) for name in held)
        if isinstance(held, list):
            return sum(self._count(item, key, path) for item in held)
        if not isinstance(held, str):
            return 0
        return len(held) // 1024 + sum(1 + self._check(name, path) for name in self._references(held, key))

    def _references(self, text: str, key: str) -> list[str]:
        names = []
        for start in _START.finditer(text):
            name = _NAME.match(text, start.end())
            follows = text[name.end() : name.end() + 1] if name else ""
            word = name[1].strip() if name else ""
            if follows == ":":
                if word not in RESOLVERS and word not in BUILT_IN:
                    raise self._error(key, f"needs the resolver '{shortened(word)}', which rlsim does not know")
                if word != "oc.select":
                    continue
                argument = _NAME.match(text, text.index(":", start.end()) + 1)
                word = argument[1].strip(" '\"") if argument else ""
            elif follows != "}":
                raise self._error(key, f"has an interpolation that rlsim does not resolve: {shortened(text)}")
            names.append(self._holder(_absolute(word, key)))
        self.read.update(names)
        return names

    def _holder(self, key: str) -> str:
        """``key``, or where it lies in a list or behind an interpolation the key of that."""
        held: Any = self._tree.values
        parts = key.split(".")
        for depth, part in enumerate(parts):
            if not isinstance(held, dict):
                return ".".join(parts[:depth]) if isinstance(held, list | str) else key
            held = held.get(part)
        return key

    def _error(self, key: str, problem: str) -> InputError:
        return InputError(f"{self._tree.where}: {shortened(key)}: {problem}")


def _interpolated(held: Any) -> bool:
    if isinstance(held, dict):
        return any(_interpolated(value) for value in held.values())
    if isinstance(held, list):
        return any(_interpolated(value) for value in held)
    return isinstance(held, str) and "${" in held


def _absolute(name: str, key: str) -> str:
    """Dotted key that a reference of ``key`` means: one dot stands for its section, two for the one above."""
    plain = name.lstrip(".")
    ups = len(name) - len(plain)
    dotted = re.sub(r"\[([^\]]*)\]", r".\1", plain).lstrip(".")
    if not ups:
        return dotted
    sections = key.split(".")
    return ".".join([*sections[: max(0, len(sections) - ups)], dotted])


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
