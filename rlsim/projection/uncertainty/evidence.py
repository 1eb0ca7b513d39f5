"""Measured times as records with their derivatives, and the file that holds those of the joint fit.

It holds what ``rlsim validate cross`` leaves out in turn, what a user's own rows are added to, and what an answer
names as its nearest measurements; no row of it can be traced back to more than its source's id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from msgspec import Struct, field

from rlsim.errors import InputError
from rlsim.files.archives import archive, read_arrays
from rlsim.files.reading import TABLE_BYTES, shown_path
from rlsim.parameters.posterior import evidence_path
from rlsim.parameters.terms import Term
from rlsim.projection.uncertainty.features import RUN_KINDS, runs_of
from rlsim.projection.uncertainty.slopes import Slopes

Kind = Literal["iteration", "training", "transfer", "step", "generation", "logprob", "train", "refit"]
Arrays = Mapping[str, np.ndarray]
SCHEMA = "rlsim.evidence/1"
MEASURED_S = "measured_s"
"""Key of ``about`` that holds the measured seconds."""


class Evidence(Struct, frozen=True):
    """One measured time. surprise: ln(measured / predicted). slopes: derivatives of ln(predicted).

    groups: coefficient of each group's deviation. about: what the row ran, for those who look for the nearest.
    """

    kind: Kind
    id: str
    surprise: float
    slopes: Slopes
    groups: Mapping[str, float]
    about: Mapping[str, str | float] = field(default_factory=dict)


class EvidenceTable(Struct, frozen=True, eq=False):
    """Measured times and the terms that they are derived by, around the values that ``shifts`` moves the sets to.

    digests: of the sets, by set; shifts: by term.
    """

    rows: tuple[Evidence, ...]
    terms: tuple[Term, ...]
    shifts: Mapping[str, float]
    digests: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """The file: equal tables give equal bytes."""
        # Sorted: the order of a set changes from process to process, and equal tables must give equal bytes.
        names = sorted({name for row in self.rows for name in (*row.slopes, *row.groups)})
        place = {name: number for number, name in enumerate(names)}
        slopes = [sorted((place[name], value) for name, value in row.slopes.items()) for row in self.rows]
        groups = [sorted((place[name], value) for name, value in row.groups.items()) for row in self.rows]
        header: dict[str, Any] = {
            "schema": SCHEMA,
            "names": names,
            "terms": [[term.name, term.spread, term.centre] for term in self.terms],
            "shifts": dict(self.shifts),
            "digests": dict(self.digests),
            "vocabulary": {},
        }
        runs: dict[str, np.ndarray] = {}
        for kind in RUN_KINDS:
            places, coded = runs_of(kind, ((row.kind, row.about) for row in self.rows))
            runs |= {f"{kind}_places": places.astype("<u2"), f"{kind}_values": coded.values.astype("<f4")}
            header["vocabulary"][kind] = coded.vocabulary
        rows = "\n".join(json.dumps([row.kind, row.id, dict(row.about)]) for row in self.rows)
        return archive(
            {
                "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
                "rows": np.frombuffer(rows.encode(), dtype=np.uint8),
                **runs,
                "surprise": np.array([row.surprise for row in self.rows], dtype="<f4"),
                **_ragged("slopes", slopes),
                **_ragged("groups", groups),
            }
        )


def _ragged(name: str, rows: Sequence[Sequence[tuple[int, float]]]) -> dict[str, np.ndarray]:
    """Rows of (place, value) as flat arrays with the length of each row."""
    flat = [entry for row in rows for entry in row]
    return {
        # With their byte order, so that equal tables give equal bytes on any machine.
        f"{name}_lengths": np.array([len(row) for row in rows], dtype="<u2"),
        f"{name}_places": np.array([place for place, _ in flat], dtype="<u2"),
        f"{name}_values": np.array([value for _, value in flat], dtype="<f4"),
    }


def load_evidence(path: Path | None = None) -> EvidenceTable:
    """The evidence of ``path``, by default the shipped one. Raises InputError where the file is none."""
    found = path or evidence_path()
    state = found.stat() if found.is_file() else None
    # Time and size for the cache alone: a file that was written anew is read anew.
    return _parsed(found, *((state.st_mtime_ns, state.st_size) if state else (0, 0)))


Built = TypeVar("Built")


def read_archive(
    path: Path, build: Callable[[Mapping[str, Any], Arrays], Built], wanted: Callable[[str], bool]
) -> Built:
    """``build`` of the header and the wanted arrays of a file of evidence. Raises InputError where it is none."""
    try:
        arrays = read_arrays(path, TABLE_BYTES, wanted)
        header = json.loads(arrays["header"].tobytes().decode())
        if header["schema"] != SCHEMA:
            raise ValueError(f"its schema is {str(header['schema'])[:40]!r}")
        return build(header, arrays)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{shown_path(path)}: is no evidence of rlsim ({str(error)[:80]})") from None


@lru_cache(maxsize=2)
def _parsed(path: Path, modified_ns: int, size: int) -> EvidenceTable:
    return read_archive(path, _table, lambda name: True)


def _table(header: Mapping[str, Any], arrays: Arrays) -> EvidenceTable:
    entries = map(json.loads, arrays["rows"].tobytes().splitlines())
    slopes, groups = (_rows(header["names"], arrays, name) for name in ("slopes", "groups"))
    rows = tuple(
        Evidence(kind, name, surprise, slope, group, about)
        for (kind, name, about), surprise, slope, group in zip(
            entries, arrays["surprise"].tolist(), slopes, groups, strict=True
        )
    )
    return EvidenceTable(rows, tuple(Term(*entry) for entry in header["terms"]), header["shifts"], header["digests"])


def _rows(names: Sequence[str], arrays: Arrays, of: str) -> list[dict[str, float]]:
    places, values = arrays[f"{of}_places"].tolist(), arrays[f"{of}_values"].tolist()
    flat = zip((names[place] for place in places), values, strict=True)
    return [dict(islice(flat, length)) for length in arrays[f"{of}_lengths"].tolist()]
