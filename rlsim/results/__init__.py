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
    Variant,
)
from rlsim.results.trace import PHASES, Curve, Span, StepPhases

__all__ = [
    "PHASES",
    "SCHEMA",
    "Curve",
    "EngineStatistics",
    "Interval",
    "Label",
    "MemoryParts",
    "MemoryUse",
    "PhasePart",
    "Projection",
    "Provenance",
    "Span",
    "StepPhases",
    "Variant",
]
