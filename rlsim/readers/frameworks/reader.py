"""Typed values of a framework's configuration, its interpolations (``${a.b}``, ``${mul:${a.b}, 2}``) resolved by
OmegaConf within bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.readers.frameworks.trees import ConfigTree, lookup, merged

_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
"""Texts that the frameworks' YAML 1.1 loaders take for true and false."""


MAX_EXPANSION = 200
"""References that one value may lead to, through others; strings that double at each step end here, not memory."""
MOST = 2**53
"""Whole numbers above are no floats, which all that is computed from them is."""
MAX_SHOWN = 4
"""Keys that a message names as those that a value of references comes from."""
MAX_DEPTH = 40
"""References that may follow each other from one value on."""


def _numbers(reckon: Callable[..., Any]) -> Callable[..., Any]:
    """A resolver of numbers alone: a text or a list times a number would be as long as a file says."""

    def resolved(*given: Any) -> Any:
        if not all(isinstance(one, int | float) for one in given):
            raise TypeError(f"takes numbers, got {shortened(repr(given))}")
        return reckon(*given)

    return resolved


def _unread(variable: str, *default: Any) -> Any:
    """Default of an environment variable, which is never read: a file from elsewhere must not show what a shell holds,
    and one configuration gives one scenario."""
    if default:
        return default[0]
    raise ValueError(f"the environment variable {shortened(str(variable))} is not read; give the key its value")


_ENVIRONMENT = "rlsim.env"
RESOLVERS: Mapping[str, Callable[..., Any]] = {
    "mul": _numbers(lambda a, b: a * b),
    "div": _numbers(lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) and a % b == 0 else a / b),
    "max": _numbers(max),
    "min": _numbers(min),
    _ENVIRONMENT: _unread,
}
"""Resolvers that NeMo-RL's loader registers (mul, max) and their companions, and one in place of OmegaConf's oc.env."""
BUILT_IN = ("oc.env", "oc.select")
_OF_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:")
_START = re.compile(r"\$\{")
_OPEN = re.compile(r"\$(?:([A-Za-z_]\w*)|\()")
_NAME = re.compile(r"\s*([^${}:,]*)")


class Reader:
    """Typed values of a configuration, interpolations resolved; it remembers which keys were asked for, for which
    scenario keys, and where these led.

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
        self._resolved: dict[str, Any] = {}
        self._purpose, self._seen = "", list[str]()
        self._uses: dict[str, dict[str, None]] = {}
        self._led: dict[str, dict[str, None]] = {}

    def changed(self, changes: Mapping[str, Any]) -> Reader:
        """A reader of the same configuration under changes."""
        tree = ConfigTree(self.where, merged(self._tree.values, changes))
        return Reader(tree, self.mean_tokens)

    @contextmanager
    def deciding(self, purpose: str) -> Iterator[list[str]]:
        """What is read meanwhile counts for a scenario key, or with "" for assumptions; gives the keys read."""
        before = self._purpose, self._seen
        self._purpose, self._seen = purpose, []
        try:
            yield self._seen
        finally:
            self._purpose, self._seen = before

    def purposes(self, key: str) -> tuple[str, ...]:
        """Scenario keys that a key was read for, itself or by what refers to it; assumptions count not."""
        found, stack, passed = dict[str, None](), [key], set[str]()
        while stack:
            name = stack.pop()
            if name not in passed:
                passed.add(name)
                found |= self._uses.get(name, {})
                stack += self._led.get(name, {})
        return tuple(purpose for purpose in found if purpose)

    def keys_for(self, purposes: Collection[str]) -> list[str]:
        """Keys that were read for some of these scenario keys, themselves or by what refers to them."""
        return [key for key in {**self._uses, **self._led} if any(one in purposes for one in self.purposes(key))]

    def shown(self, key: str) -> str:
        """The name by which a message calls a key: the user's, where that is of another release."""
        users = (old + key[len(new) :] for new, old in self._tree.aliases.items() if f"{key}.".startswith(f"{new}."))
        return next(users, key)

    def _note(self, key: str) -> None:
        self.read.add(key)
        self._seen.append(key)
        self._uses.setdefault(key, {})[self._purpose] = None

    def value(self, key: str) -> Any:
        """The resolved value, None where it is not there. Raises InputError where it cannot be resolved."""
        holder = self._holder(key)
        if not _interpolated(lookup(self._tree.values, holder)):
            return self.raw(key)
        self._note(key)
        if key not in self._resolved:
            self._check(holder, ())
            if holder != key:
                self._led.setdefault(holder, {})[key] = None
            self._resolved[key] = self._resolve(key)
        return self._resolved[key]

    def raw(self, key: str) -> Any:
        """What a key holds, references unresolved."""
        self._note(key)
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

    def section(self, key: str) -> Mapping[str, Any]:
        """A section; empty where it is not there."""
        found = self.value(key)
        if found is not None and not isinstance(found, dict):
            raise self.error(key, "must be a section", found)
        return found or {}

    def size(self, key: str, default: int = 1) -> int:
        """A whole number of at least 1; ``default`` where it is not there."""
        found = self.integer(key, default)
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
        # true is an int to Python, and no number of a configuration.
        if not isinstance(found, kind) or isinstance(found, bool) != (kind is bool):
            raise self.error(key, f"must be {wanted}", found)
        if isinstance(found, int) and abs(found) > MOST:
            raise self.error(key, f"must be {wanted} of at most 2^53", found)
        return found

    def text(self, key: str, default: str = "") -> str:
        """A text."""
        found = self.value(key)
        if found is None:
            return default
        # ??? is OmegaConf's mark of a value that somebody must give.
        if not isinstance(found, str) or found == "???":
            raise self.error(key, "must be given" if found == "???" else "must be text", found)
        return found

    def error(self, key: str, problem: str, found: Any) -> InputError:
        """That a key holds what it must not; a shell's words that stay open also say how to give them."""
        unset, way = _OPEN.match(found) if isinstance(found, str) else None, ""
        if unset:
            # Only names in capitals are variables of the script behind it; others would be keys.
            name = unset[1] if (unset[1] or "").isupper() else None
            way = f", which is not set here: {f'add {name}=VALUE behind it' if name else 'give it behind --'}"
        got = f"{shortened(repr(found))}{way}{self._origin(key)}"
        return InputError(f"{self.where}: {self.shown(key)}: {problem}, got {got}")

    def _origin(self, key: str) -> str:
        """The keys that a value of references comes from, for a message."""
        names = [key]
        for name in names:
            names += [one for one, led in self._led.items() if name in led and one not in names]
        listed = [f"'{shortened(name, 100)}'" for name in names[1 : MAX_SHOWN + 1]]
        return f", by {', '.join(listed)}" if listed else ""

    def _resolve(self, key: str) -> Any:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            if self._config is None:
                for name, resolver in RESOLVERS.items():
                    # The registry is of the process: a name that an earlier reader registered would be an error.
                    if not OmegaConf.has_resolver(name):
                        OmegaConf.register_resolver(name, resolver, annotation_validation="off")
                self._config = OmegaConf.create(_without_environment(self._tree.values))
            found = OmegaConf.select(self._config, key)
            return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
        except (OmegaConfBaseException, RecursionError, ArithmeticError, TypeError, ValueError) as error:
            # Further lines of OmegaConf's messages name its own classes (full_key, object_type).
            problem = shortened(str(error).splitlines()[0] if str(error) else type(error).__name__, 120)
            if self._config is None:  # what it cannot make a configuration of is a text anywhere, not this key
                raise self._error(getattr(error, "full_key", None) or key, f"cannot be read ({problem})") from error
            raise self._error(key, f"cannot be resolved ({problem}){self._origin(key)}") from error

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
            for name in held:
                self._led.setdefault(f"{key}.{name}", {})[key] = None
            return sum(self._check(f"{key}.{name}", path) for name in held)
        if isinstance(held, list):
            return sum(self._count(item, key, path) for item in held)
        if not isinstance(held, str):
            return 0
        # Length counts too: a long text that many keys refer to multiplies as references do.
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
                # References within a resolver are found by themselves; oc.select alone takes a bare key.
                if word != "oc.select":
                    continue
                argument = _NAME.match(text, text.index(":", start.end()) + 1)
                word = argument[1].strip(" '\"") if argument else ""
            elif follows != "}":
                raise self._error(key, f"has an interpolation that rlsim does not resolve: {shortened(text)}")
            names.append(self._holder(led := _absolute(word, key)))
            self._check_section(key, led, names[-1])
        self.read.update(names)
        for led in names:
            self._led.setdefault(led, {})[key] = None
        return names

    def _check_section(self, key: str, name: str, holder: str) -> None:
        """Raise InputError where ``key`` refers to a name within what holds none."""
        held, rest = lookup(self._tree.values, holder), name[len(holder) + 1 :].partition(".")[0]
        if rest and not rest.isdigit() and not _interpolated(held):
            raise self._error(key, f"refers to '{shortened(name)}', and '{shortened(holder)}' is no section")

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
        return InputError(f"{self._tree.where}: {shortened(self.shown(key))}: {problem}")


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


def _without_environment(held: Any) -> Any:
    """Values whose references to the environment go to :func:`_unread`."""
    if isinstance(held, dict):
        return {name: _without_environment(value) for name, value in held.items()}
    if isinstance(held, list):
        return [_without_environment(value) for value in held]
    return _OF_ENVIRONMENT.sub(f"${{{_ENVIRONMENT}:", held) if isinstance(held, str) else held
