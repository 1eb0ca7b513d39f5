"""What comes out, as data: the records that commands return, reports read and JSON files hold.

Those of the line from prices to a projection are here; each other answer has its own module.
"""

from rlsim.results.projection import (
    PHASES,
    Curve,
    EngineStatistics,
    MemoryParts,
    MemoryUse,
    PhasePart,
    Projection,
    Provenance,
    Sampling,
    Span,
    StepPhases,
    TokenLedger,
    Variant,
)
from rlsim.results.record import Interval

__all__ = [
    "PHASES",
    "Curve",
    "EngineStatistics",
    "Interval",
    "MemoryParts",
    "MemoryUse",
    "PhasePart",
    "Projection",
    "Provenance",
    "Sampling",
    "Span",
    "StepPhases",
    "TokenLedger",
    "Variant",
]
