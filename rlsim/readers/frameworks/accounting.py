"""What became of every key of an imported configuration."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlsim.errors import shortened
from rlsim.readers.frameworks.rows import Framework, Reader
from rlsim.readers.frameworks.trees import ConfigTree, leaves

MISSPELT = 0.85
"""Likeness to a used key from which a key in a section without effect counts as misspelt."""
SHOWN_KEYS = 12
"""Keys of a kind that the summary names; the whole accounting has all of them."""
STATUSES = ("used", "irrelevant", "not_simulated", "not_understood")


@dataclass(frozen=True)
class KeyAccount:
    """One key: its value and origin, and what became of it.

    status: used, irrelevant (to the time of a step), not_simulated (may matter; no scenario key says it) or
    not_understood. detail: scenario keys that it decides, the reason, or the nearest known key.
    """

    key: str
    value: str
    origin: str
    status: str
    detail: str


@dataclass(frozen=True)
class Accounting:
    """Every key of the user's files and overrides, and the defaults that were used beside them."""

    framework: str
    keys: tuple[KeyAccount, ...]
    defaults: tuple[KeyAccount, ...]
    notes: tuple[str, ...]

    def of(self, status: str) -> tuple[KeyAccount, ...]:
        """Keys of one status."""
        return tuple(account for account in self.keys if account.status == status)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "framework": self.framework,
            "counts": {status: len(self.of(status)) for status in STATUSES},
            "keys": [asdict(account) for account in self.keys],
            "defaults": [asdict(account) for account in self.defaults],
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """A few lines: counts, reasons, and every kind of key that the answer lacks by name."""
        reasons = Counter(account.detail for account in self.of("irrelevant"))
        words = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        lines = [
            f"{len(self.keys)} keys: {len(self.of('used'))} used (and {len(self.defaults)} defaults), "
            f"{len(self.of('irrelevant'))} irrelevant to time{f' ({words})' if words else ''}, "
            f"{len(self.of('not_simulated'))} not simulated, {len(self.of('not_understood'))} not understood"
        ]
        for status, title in (("not_simulated", "may matter, not simulated"), ("not_understood", "NOT UNDERSTOOD")):
            found = self.of(status)
            shown = [f"{shortened(a.key, 100)}={a.value}" + _hint(a) for a in found[:SHOWN_KEYS]]
            more = f" and {len(found) - SHOWN_KEYS} more (--json)" if len(found) > SHOWN_KEYS else ""
            lines += [f"{title}: {', '.join(shown)}{more}"] if found else []
        return "\n".join([*lines, *self.notes])


def _hint(account: KeyAccount) -> str:
    return f" ({account.detail})" if account.status == "not_understood" and account.detail else ""


def account_for(framework: Framework, tree: ConfigTree, reader: Reader) -> Accounting:
    """The accounting of a tree whose scenario ``reader`` read."""
    read = set(reader.read)
    idle = (*framework.idle(reader), *_disabled(tree.values))
    decides: dict[str, dict[str, None]] = {}
    for row in framework.rows:
        for key in row.keys:
            decides.setdefault(key, {})[row.target] = None
    keys = [_account(framework, decides, key, value, tree, read, idle) for key, value in leaves(tree.values)]
    given = tuple(account for account in keys if account.key in tree.given)
    defaults = tuple(account for account in keys if account.key not in tree.given and account.status == "used")
    return Accounting(framework.name, given, defaults, tree.notes)


def _account(
    framework: Framework,
    decides: Mapping[str, Mapping[str, None]],
    key: str,
    value: Any,
    tree: ConfigTree,
    read: set[str],
    idle: Sequence[str],
) -> KeyAccount:
    shown, origin = shortened(str(value)), tree.given.get(key, "default")
    owned = key in decides or key in framework.relevant_elsewhere
    if owned and key in read:
        return KeyAccount(key, shown, origin, "used", ", ".join(decides.get(key, {})) or "assumptions")
    if owned or any(f"{key}.".startswith(f"{section}.") for section in idle):
        return KeyAccount(key, shown, origin, "irrelevant", "inactive")
    found = framework.why(key)
    section = any(known.startswith(f"{key}.") for known in framework.known)
    if value in (None, {}, []) and (section or (found is not None and found[0] == "not_simulated")):
        return KeyAccount(key, shown, origin, "irrelevant", "unset")
    if found is not None and not _misspelt(framework, decides, key):
        return KeyAccount(key, shown, origin, *found)
    near = framework.nearest(key) if found is None else _misspelt(framework, decides, key)
    return KeyAccount(key, shown, origin, "not_understood", f"did you mean {near}?" if near else "")


def _disabled(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Sections that say of themselves that they are not enabled."""
    for key, value in values.items():
        if isinstance(value, dict):
            if value.get("enabled", value.get("enable")) is False:
                yield f"{prefix}{key}"
            else:
                yield from _disabled(value, f"{prefix}{key}.")


def _misspelt(framework: Framework, decides: Mapping[str, Mapping[str, None]], key: str) -> str | None:
    """The used key of the same section that a key without an entry of its own is nearly written as."""
    if key in framework.known:
        return None
    section, _, name = key.rpartition(".")
    owned = [*decides, *framework.relevant_elsewhere]
    beside = [other.rpartition(".")[2] for other in owned if other.rpartition(".")[0] == section]
    found = difflib.get_close_matches(name, beside, n=1, cutoff=MISSPELT)
    return f"{section}.{found[0]}" if found else None
