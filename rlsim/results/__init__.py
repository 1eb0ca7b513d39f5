"""What comes out, as data: the records that ``project`` returns, the reports read and projection.json holds."""

from rlsim.results.projection import (
    SCHEMA,
    EngineStatistics,
    Interval,
    Label,
    MemoryParts,
    MemoryUse,
    PhasePart,
    Projection,
    Provenance,
    Sampling,
    Variant,
)
from rlsim.results.support import Difference, HalfSupport, Leaning, Neighbour, Support
from rlsim.results.trace import PHASES, Curve, Span, StepPhases, TokenLedger

__all__ = [
    "PHASES",
    "SCHEMA",
    "Curve",
    "Difference",
    "EngineStatistics",
    "HalfSupport",
    "Interval",
    "Label",
    "Leaning",
    "MemoryParts",
    "MemoryUse",
    "Neighbour",
    "PhasePart",
    "Projection",
    "Provenance",
    "Sampling",
    "Span",
    "StepPhases",
    "Support",
    "TokenLedger",
    "Variant",
]
