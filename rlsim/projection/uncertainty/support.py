"""What supports an answer: the nearest measured runs, and what its interval comes from."""

from __future__ import annotations

import math

from rlsim.projection.uncertainty.features import RUN_KINDS
from rlsim.projection.uncertainty.nearest import nearest
from rlsim.projection.uncertainty.predictive import between, kept_with_run, prediction_of
from rlsim.projection.uncertainty.sources import mean_shares, shares_by_kind, sources_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.results.support import NearestRuns, Support, VarianceSource

NEIGHBOURS = 3
"""Measured runs that are named of each kind."""


@kept_with_run
def support_of(run: SimulatedVariant) -> Support:
    """What supports the step of a simulated scenario."""
    predicted = prediction_of(run)
    low, high = between(predicted.step_factor)
    shares = {**shares_by_kind(mean_shares(predicted)), "step": 1.0}
    found = (NearestRuns(kind=k, share=shares[k], runs=nearest(run.scenario, k, NEIGHBOURS)) for k in RUN_KINDS)
    sources = (
        VarianceSource(
            source=one.name,
            kind=one.kind,
            share=one.share,
            assumed=one.assumed,
            settle=one.settle,
            command=one.command,
        )
        for one in sources_of(run)
    )
    return Support(half_width=math.sqrt(high / low) - 1, nearest=tuple(found), sources=tuple(sources))
