"""What comes out, as data: the records that ``project`` returns, the reports read and projection.json holds."""

from rlsim.results.projection import (
    SCHEMA,
    Arm,
    EngineStatistics,
    Label,
    MemoryParts,
    MemoryUse,
    PhasePart,
    Projection,
    Provenance,
    Quantity,
)
from rlsim.results.trace import PHASES, Curve, Span, StepPhases

__all__ = [
    "PHASES",
    "SCHEMA",
    "Arm",
    "Curve",
    "EngineStatistics",
    "Label",
    "MemoryParts",
    "MemoryUse",
    "PhasePart",
    "Projection",
    "Provenance",
    "Quantity",
    "Span",
    "StepPhases",
]
