"""What moves of agents try out: fewer turns, faster calls, more places, sandboxes started beforehand."""

import math
from statistics import NormalDist

import numpy as np

from rlsim.loading.overrides import value_at
from rlsim.loading.variation import Overrides
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantTurns, LognormalTurns
from rlsim.workload.lengths import solve_time, solve_turns
from rlsim.workload.lognormal import limited_lognormal_mean
from rlsim.workload.replay import recorded

AGENT = "workload.agent"
LIMITS = ("max_trajectories", "max_environments", "nodes.count")
"""Places that can be had without GPUs."""


def capped_turns(scenario: Scenario, level: float) -> Overrides:
    """Trajectories end after the turns that a share ``level`` of them does not exceed; nothing where all are equal."""
    agent = scenario.workload.agent
    if agent is None or (agent.replay is None and isinstance(agent.turns, ConstantTurns)):
        return {}
    if agent.replay is not None:
        most = math.ceil(np.quantile(np.diff(recorded(agent.replay).first), level))
        return {f"{AGENT}.max_turns": min(most, agent.max_turns)}
    turns = solve_turns(agent.turns, agent.max_turns)
    most = min(agent.max_turns, math.ceil(float(turns.at(np.array(NormalDist().inv_cdf(level))))))
    keys: Overrides = {f"{AGENT}.max_turns": most}
    if isinstance(agent.turns, LognormalTurns):  # its mean is that after the cut, which moves with it
        mean = limited_lognormal_mean(turns.location, turns.sigma, most)
        return {**keys, f"{AGENT}.turns.mean_turns": round(max(1.0, mean), 4)}
    return keys


def faster_calls(scenario: Scenario, level: float) -> Overrides:
    """No call takes longer than a share ``level`` of them does."""
    agent = scenario.workload.agent
    if agent is None:
        return {}
    if agent.replay is not None:
        longest_s = float(np.quantile(recorded(agent.replay).environment_s, level))
    else:
        longest_s = float(solve_time(agent.environment_s).at(np.array(NormalDist().inv_cdf(level))))
    longest_s = float(f"{longest_s:.4g}")
    spared = longest_s > 0 and longest_s < (agent.turn_timeout_s or math.inf)
    return {f"{AGENT}.turn_timeout_s": longest_s} if spared else {}


def more_places(scenario: Scenario, factor: int) -> Overrides:
    """So many times the places that the scenario limits."""
    if scenario.workload.agent is None:
        return {}
    stated = ((f"{AGENT}.{name}", value_at(scenario, f"{AGENT}.{name}")) for name in LIMITS)
    return {key: factor * value for key, value in stated if isinstance(value, int)}


def started_beforehand(scenario: Scenario, share: float) -> Overrides:
    """Sandboxes for a share of a step's trajectories are started before anybody needs them."""
    return {f"{AGENT}.started_sandboxes": math.ceil(share * scenario.workload.samples_per_step)}
