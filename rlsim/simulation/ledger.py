"""Where the response tokens of a lagged loop went: what engines emitted beside what became of it."""

from __future__ import annotations

import numpy as np

from rlsim.results import TokenLedger
from rlsim.simulation.generation import Generation
from rlsim.simulation.intake import Removed
from rlsim.units import IntArray
from rlsim.workload.draw import DrawnWorkload


class TokenAccount:
    """The ledger of a generator between :meth:`open` and :meth:`close`."""

    def __init__(self, workload: DrawnWorkload, generation: Generation) -> None:
        self._generation = generation
        self._response_tokens = np.concatenate([step.rollouts[0].batch.response_tokens for step in workload.steps])
        self._opened = TokenLedger(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def open(self) -> None:
        """Begin here."""
        self._opened = self.balance()

    def close(self) -> TokenLedger:
        """What has happened since."""
        return self.balance() - self._opened

    def balance(self) -> TokenLedger:
        """Everything so far. ``generated`` is what engines counted; the rest is reckoned from samples and groups."""
        engines = self._generation.engines
        emitted, in_progress_tokens = engines.emitted()
        finished = engines.finish_s > 0.0
        cancelled = self._samples("cancelled")
        lost = float(self._response_tokens[cancelled[finished[cancelled]]].sum())
        consumed, stale, discarded = (self._tokens(kind) for kind in ("consumed", "stale", "discarded"))
        held = float(self._response_tokens[finished].sum()) - lost - consumed - stale - discarded
        return TokenLedger(
            generated=emitted.generated_tokens,
            consumed=consumed,
            stale=stale + lost + emitted.discarded_tokens,
            discarded=discarded,
            regenerated=emitted.regenerated_tokens,
            in_flight=held + in_progress_tokens,
        )

    def _tokens(self, kind: Removed) -> float:
        return float(self._response_tokens[self._samples(kind)].sum())

    def _samples(self, kind: Removed) -> IntArray:
        intake = self._generation.intake
        removed = intake.removed_groups[kind]
        return intake.samples(np.concatenate(removed)) if removed else np.empty(0, dtype=np.int64)
