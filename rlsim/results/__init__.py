"""What comes out, as data: the records that commands return, reports read and JSON files hold.

Those of the line from prices to a projection are here; each other answer has its own module.
"""

from rlsim.results.memory import MemoryParts as MemoryParts
from rlsim.results.memory import MemoryUse as MemoryUse
from rlsim.results.projection import PHASES as PHASES
from rlsim.results.projection import Curve as Curve
from rlsim.results.projection import EngineStatistics as EngineStatistics
from rlsim.results.projection import PhasePart as PhasePart
from rlsim.results.projection import Projection as Projection
from rlsim.results.projection import Provenance as Provenance
from rlsim.results.projection import Sampling as Sampling
from rlsim.results.projection import Span as Span
from rlsim.results.projection import StepPhases as StepPhases
from rlsim.results.projection import TokenLedger as TokenLedger
from rlsim.results.projection import Variant as Variant
from rlsim.results.record import Interval as Interval
