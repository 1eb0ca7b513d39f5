"""Measured acceptance as the speculation of a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlsim.readers.traces.acceptance import MeasuredAcceptance
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table


@dataclass(frozen=True)
class AcceptanceAnswer:
    """What counters of speculative decoding say of a scenario."""

    found: MeasuredAcceptance

    @property
    def _rates(self) -> str:
        return ", ".join(f"{rate:.4g}" for rate in self.found.position_rates)

    def fragment(self) -> str:
        """The part of a scenario file that the counters tell; the method (eagle3, mtp, ...) they do not."""
        found = self.found
        origin = f"{found.verifications:,.0f} verifications, acceptance length {found.acceptance_length:.3f}"
        return (
            f"# {found.where}: {origin}\n"
            f"speculation:\n  draft_length: {found.draft_length}\n  position_acceptance: [{self._rates}]\n"
        )

    def settings(self) -> list[str]:
        """The fragment as ``--set``; whatever else the scenario says of acceptance falls."""
        return [
            f"--set speculation.draft_length={self.found.draft_length}",
            f"--set 'speculation.position_acceptance=[{self._rates}]'",
            "--set speculation.acceptance_length=null",
            "--set speculation.first_acceptance=null",
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.found
        return {
            "schema": "rlsim.acceptance/1",
            "trace": found.where,
            "verifications": found.verifications,
            "draft_length": found.draft_length,
            "position_acceptance": list(found.position_rates),
            "acceptance_length": found.acceptance_length,
            "remarks": list(found.remarks),
            "fragment": self.fragment(),
        }

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """For a terminal: cumulative and conditional acceptance of each position."""
        found = self.found
        before = (1.0, *found.position_rates)
        rows = [
            (str(place), f"{rate:.3f}", f"{rate / last:.3f}" if last else "-")
            for place, (rate, last) in enumerate(zip(found.position_rates, before, strict=False), start=1)
        ]
        title = (
            f"{found.where}: acceptance length {found.acceptance_length:.3f} (with the bonus token) over "
            f"{found.verifications:,.0f} verifications of {found.draft_length} drafted tokens"
        )
        heads = ("position", "accepted", "given the one before")
        lines = [*style.wrapped(title), "", *table(heads, rows, style, ">"), ""]
        for remark in (*found.remarks, "the counters do not tell who drafted: state speculation.method"):
            lines += style.wrapped(remark, "- ")
        return "\n".join([*lines, "", self.fragment(), f"or: {' '.join(self.settings())}"])
