"""The file of measured times."""

from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.parameters.terms import Term
from rlsim.projection.uncertainty.evidence import Evidence, EvidenceTable, load_evidence

ROWS = (
    Evidence("iteration", "a", 0.25, {"x": 0.5, "y": -1.0}, {"engine: e": 1.0}, {"model": "m", "gpus": 8.0}),
    Evidence("step", "b", -0.5, {}, {"engine: e": 0.75, "trainer: t": 0.25}),
)
TABLE = EvidenceTable(ROWS, (Term("x", 0.5, 0.1), Term("y", 0.3)), {"x": 0.2}, {"engines": "abc"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "evidence.npz"
    path.write_bytes(TABLE.to_bytes())
    found = load_evidence(path)
    assert (found.rows, found.terms, found.shifts, found.digests) == (ROWS, TABLE.terms, TABLE.shifts, TABLE.digests)
    assert found.to_bytes() == TABLE.to_bytes()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x00" * 100])
def test_another_file_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"mine\.npz: is no evidence"):
        load_evidence(path)


def test_the_shipped_evidence_holds_every_kind() -> None:
    found = load_evidence()
    assert {row.kind for row in found.rows} >= {"iteration", "training", "transfer", "step", "train"}
    names = {term.name for term in found.terms}
    assert all(name in names for row in found.rows for name in row.slopes)
