"""What became of every key of an imported configuration."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlsim.errors import shortened
from rlsim.readers.frameworks.framework import Framework
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.trees import ConfigTree, leaves

MISSPELT = 0.85
"""Likeness to a used key from which a key in a section without effect counts as misspelt."""
SHOWN_KEYS = 12
"""Keys of a kind that the summary names; the whole accounting has all of them."""
HEAVY = re.compile(
    r"batch|parallel|(^|[._])(tp|pp|ep|cp|dp|n|size|lag)($|_size)|num_(nodes|gpus|prompts|generations|samples|engines|replicas)"
    r"|nnodes|gpus|precision|dtype|quant|fp8|nvfp4|backend|strategy|engine|offload|stale|async|turns|agent|epochs|micro"
    r"|max_(model_)?len|tokens|seq(uence)?_len|speculat|draft|colocat|lora|teacher|captur|dispatch|recompute|checkpointing"
)
"""Names of keys that hold a batch, a layout, a backend, a precision, an algorithm, an agent or an environment."""
POOLED = {"teacher": "teacher", "teachers": "teacher", "reward": "reward_model", "reward model": "reward_model"}
"""Reasons of keys that nothing simulates but a pool of the role."""
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

    @property
    def heavy(self) -> tuple[KeyAccount, ...]:
        """Keys that are not understood and whose names say that they may decide the answer."""
        return tuple(account for account in self.of("not_understood") if HEAVY.search(account.key))

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        counts = {status: len(self.of(status)) for status in STATUSES}
        return {"framework": self.framework, "counts": counts, **asdict(self)}

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
            shown = [
                f"{shortened(one.key, 100)}={one.value}"
                + (f" ({one.detail})" if status == "not_understood" and one.detail else "")
                for one in found[:SHOWN_KEYS]
            ]
            more = f" and {len(found) - SHOWN_KEYS} more (--json)" if len(found) > SHOWN_KEYS else ""
            lines += [f"{title}: {', '.join(shown)}{more}"] if found else []
        return "\n".join([*lines, *self.notes])


def account_for(framework: Framework, tree: ConfigTree, reader: Reader, scenario: Mapping[str, Any]) -> Accounting:
    """The accounting of a tree of which ``reader`` gave the keys of a ``scenario``."""
    read = set(reader.read)
    idle = tuple(f"{section}." for section in idle_sections(framework, tree, reader, scenario))
    roles = {pool["role"] for pool in scenario.get("pools", ())}
    keys = []
    for key, value in leaves(tree.values):
        # Of a declared key the conditions of the rules decide: one may read it in a section that is off.
        inactive = key not in read if key in framework.declared else f"{key}.".startswith(idle)
        status, detail = ("irrelevant", "inactive") if inactive else _status(framework, reader, key, value)
        if POOLED.get(detail) in roles:
            status, detail = "used", "pools"
        keys.append(KeyAccount(key, shortened(str(value)), tree.given.get(key, "default"), status, detail))
    given = tuple(account for account in keys if account.key in tree.given)
    defaults = tuple(account for account in keys if account.key not in tree.given and account.status == "used")
    return Accounting(framework.name, given, defaults, tree.notes)


def idle_sections(
    framework: Framework, tree: ConfigTree, reader: Reader, scenario: Mapping[str, Any]
) -> tuple[str, ...]:
    """Sections of a configuration without an effect: those of what is not chosen, and those that are not enabled."""
    return (*framework.unused(reader, scenario), *_disabled(tree.values))


def _status(framework: Framework, reader: Reader, key: str, value: Any) -> tuple[str, str]:
    """Status and detail of a key that is active."""
    if framework.hydra and key.rpartition(".")[2] == "_target_":  # a class that Hydra makes
        return "irrelevant", "launch"
    found, purposes = framework.why(key), reader.purposes(key)
    if key in framework.declared or (found is None and purposes):  # itself, or what refers to it
        return "used", ", ".join(purposes) or "assumptions"
    section = any(known.startswith(f"{key}.") for known in framework.known)
    if value in (None, {}, []) and (section or (found is not None and found[0] == "not_simulated")):
        return "irrelevant", "unset"
    # A section without effect would hide a misspelt key that has one: likeness counts before the section's reason.
    near = _misspelt(framework, key)
    if near is None and found is None and (value is None or value is False or value in ("", {}, [])):
        return "irrelevant", "off"
    if found is not None and near is None:
        return found
    near = framework.nearest(key) if found is None else near
    return "not_understood", f"did you mean {near}?" if near else ""


def _disabled(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Sections that say of themselves that they are not enabled."""
    for key, value in values.items():
        if isinstance(value, dict):
            if value.get("enabled", value.get("enable")) is False:
                yield f"{prefix}{key}"
            else:
                yield from _disabled(value, f"{prefix}{key}.")


def near_key(framework: Framework, key: str) -> str | None:
    """The known key that one which nobody knows looks like, a section's name misspelt too; None for a known key."""
    near = _misspelt(framework, key)
    if near or key in framework.known or framework.why(key) is not None:
        return near
    whole = difflib.get_close_matches(key, sorted(framework.declared), n=1, cutoff=MISSPELT)
    return whole[0] if whole else framework.nearest(key)


def _misspelt(framework: Framework, key: str) -> str | None:
    """The used key of the same section that a key without an entry of its own is nearly written as."""
    if key in framework.known:
        return None
    section, _, name = key.rpartition(".")
    beside = [other.rpartition(".")[2] for other in framework.declared if other.rpartition(".")[0] == section]
    found = difflib.get_close_matches(name, beside, n=1, cutoff=MISSPELT)
    return f"{section}.{found[0]}".lstrip(".") if found else None
