"""What a refused import says beside its reason: keys of the user's configuration, where the reason names others."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from rlsim.errors import InputError, shortened
from rlsim.readers.frameworks.accounting import MISSPELT, near_key
from rlsim.readers.frameworks.framework import Framework
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.trees import ConfigTree, leaves, lookup

DEFAULTS = "defaults"
"""The key by which a file names what it inherits."""
MOST_KEYS = 8
"""Keys of a kind that a refusal names."""


def explained(
    error: InputError, framework: Framework, tree: ConfigTree, about: Iterable[str] = (), model: object = None
) -> InputError:
    """``error`` with the keys that the scenario keys in its text are read from: those given, rlsim's defaults and those
    that are not given; and keys that nobody knows and that look like one of them.

    about: scenario keys that the text does not name. model: the card, whose name stands for the key of the model.
    """
    text, reader = str(error), Reader(tree)
    targets = {rule.target for rule in framework.rules if _names(text, rule.target)} | set(about)
    for rule in framework.rules:
        with suppress(InputError):
            rule.read(reader)
    keys = reader.keys_for(targets)
    if isinstance(model, str) and model.lower() in text.lower():
        keys.append(framework.model)
    found = _by_origin([key for key in keys if not key.startswith("launcher.") and reader.shown(key) not in text], tree)
    named = {reader.shown(name) for names in found.values() for name in names}
    for key, near in _misspelt(framework, tree, [DEFAULTS] if found["by rlsim's defaults"] else []):
        if key not in text and (near in {*named, DEFAULTS} or _stands_in(text, near)):
            text += f"; '{shortened(key, 100)}' is not understood: did you mean '{near}'?"
    for title, names in found.items():
        listed = [f"'{shortened(reader.shown(name), 100)}'" for name in names[:MOST_KEYS]]
        text += f"; {title} {', '.join(listed)}" if listed else ""
    return InputError(text)


def _names(text: str, target: str) -> bool:
    """Whether a message names a scenario key, whole or, beside its section, by its last part."""
    section, _, name = target.rpartition(".")
    return _stands_in(text, target) or bool(section and _stands_in(text, name) and re.search(rf"\b{section}[.:]", text))


def _stands_in(text: str, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.]*\w)", text) is not None


def _by_origin(keys: Sequence[str], tree: ConfigTree) -> Mapping[str, list[str]]:
    """Keys by where their values come from; of a key below what is no section, that."""
    found: dict[str, list[str]] = {"read from": [], "by rlsim's defaults": [], "no section:": [], "not given:": []}
    for key in dict.fromkeys(keys):
        held, parts = lookup(tree.values, key), key.split(".")
        above = (".".join(parts[:depth]) for depth in range(1, len(parts)))
        plain = next((one for one in above if not isinstance(lookup(tree.values, one), dict | None)), "")
        if plain and plain not in found["no section:"]:
            found["no section:"].append(plain)
        elif held is None and not plain:
            found["not given:"].append(key)
        elif held is not None and not isinstance(held, dict):
            found["read from" if key in tree.given else "by rlsim's defaults"].append(key)
    # A key beside others that are there is left out sooner than one of a section that nobody wrote.
    found["not given:"].sort(key=lambda key: "." in key and not lookup(tree.values, key.rpartition(".")[0]))
    return found


def _misspelt(framework: Framework, tree: ConfigTree, further: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Keys of the user's that nobody knows, with the known one, or the one of ``further``, that they look like."""
    for key, _ in leaves(tree.values):
        if key in tree.given:
            near = [*difflib.get_close_matches(key, further, cutoff=MISSPELT), near_key(framework, key)]
            yield from ((key, one) for one in near[:1] if one)
