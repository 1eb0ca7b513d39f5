"""From one projection to a decision: sweeps, plans, comparisons, and what to measure next.

``sweep``, ``plan``, ``compare`` and ``improve`` are the library calls behind the commands of the same names;
``Objective`` and ``SearchLimits`` say what a plan is for and where to look.
"""

from rlsim.planning.compare import compare
from rlsim.planning.improve import improve
from rlsim.planning.objective import Objective
from rlsim.planning.plan import plan
from rlsim.planning.space import SearchLimits
from rlsim.planning.sweep import sweep

__all__ = ["Objective", "SearchLimits", "compare", "improve", "plan", "sweep"]
