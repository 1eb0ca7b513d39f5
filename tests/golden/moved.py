"""For the golden net: small scenarios under every known fault, what explains a run that has one, and every move."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from rlsim.attribution.check import check
from rlsim.attribution.faults import Faulty
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import load_scenario
from rlsim.projection.agent_moves import faster_calls
from rlsim.projection.headroom import blame, causes_of, headroom
from rlsim.projection.moves import faults, ideals, moves
from rlsim.projection.variant import simulate_variant
from rlsim.schema.scenario import Scenario
from tests.golden.plain import plain
from tests.golden.traits import LAG, MOE, PLAIN, TURNS, words

ONE = ("simulation.replications=1", "workload.prompts_per_step=16")
SCENARIOS: dict[str, tuple[str, ...]] = {
    "drafts": (),
    "updates": ("trainer.global_batch_samples=128", PLAIN, "stack=null", "workload.usable_group_share=0.8"),
    "lag": (*LAG, "loop.policy_lag=2", "simulation.steps=6", "loop.in_flight_updates=false"),
    "turns": (TURNS % ", max_environments: 64, start_s: {kind: constant, seconds: 2}", "engine.dispatch=round_robin"),
    "lagged turns": (*LAG, TURNS % ", turn_timeout_s: 9", "engine.dispatch=least_loaded"),
    "adapters": ("trainer.lora_rank=16", "trainer.pipeline_parallel=1", "stack=verl", "trainer.sequence_packing=false",
                 "trainer.micro_batch_tokens=null", "workload.max_sequence_tokens=3000", "engine.cuda_graphs=false"),
    "experts": (*MOE, "stack=slime"),
    "FP8": ("engine.weight_precision=fp8", "trainer.precision=fp8", "workload.environment_s=5", "stack=nemo_rl-0.8"),
    "constant": ("workload.response_tokens={kind: constant, tokens: 900}", "trainer.micro_batch_tokens=null",
                 "trainer.micro_batch_samples=2", "workload.max_sequence_tokens=2048", "trainer.sequence_packing=false",
                 PLAIN),
}  # fmt: skip
"""Loops of several kinds, by name."""


def small(name: str) -> Scenario:
    """One of SCENARIOS."""
    return load_scenario("quickstart", [*ONE, *SCENARIOS[name]])


@cache
def faulty_of(name: str) -> Faulty:
    """Simulations of one of SCENARIOS under faults."""
    return Faulty(small(name))


def under_faults(name: str) -> Any:
    """What a run shows under each fault that it can have, at every severity; of the others the reason."""
    faulty, found = faulty_of(name), list[Any]()
    for fault in faults():
        if reason := fault.missing(faulty.scenario):
            found.append([fault.name, reason])
            continue
        for severity in fault.severities or (1.0,):
            change = fault.of(faulty.scenario, severity, faulty.healthy.step_s)
            pattern = faulty.with_fault(fault, severity)
            shown = None if pattern is None else list(pattern.phases.values())
            found.append([fault.name, change and [list(change.keys.values()), change.how], shown])
        if pattern is not None:
            found.append(list(pattern.figures.values()))
    return words(plain(found))


def explained(name: str) -> Any:
    """What explains a run of a small scenario under each of some faults, and how to be sure."""
    faulty, found, seen = faulty_of(name), list[Any](), list[tuple[int, int]]()
    able = [fault for fault in faults() if not fault.missing(faulty.scenario)]
    for number, fault in enumerate(able[::7]):
        severity = fault.severities[-1] if fault.severities else 1.0
        pattern = faulty.with_fault(fault, severity)
        if pattern is None:
            continue
        given = dict(list(pattern.phases.items())[: 2 + number % 5]) | dict(list(pattern.figures.items())[: number % 3])
        try:
            noise = (None, 0.02, {"step": 0.3})[number % 3]
            given |= {"train": given["train"] / 20} if number % 3 == 2 and "train" in given else {}  # above the peak
            answer = check(small(name), given, noise, faulty, lambda *counts: seen.append(counts), number % 4 == 1)
        except InputError as error:
            found.append([fault.name, str(error)])
            continue
        groups = [[group.probability, [[one.name, one.probability, one.severity, one.gain_s, one.changes, one.misstated]
                                       for one in group.members]] for group in answer.groups[:3]]  # fmt: skip
        phases = [[one.measured_s, one.ratio, one.lost_s, one.verdict, one.mfu] for one in answer.phases]
        rest = (answer.healthy, answer.unlisted, answer.tests, answer.stated, answer.noise, answer.tried,
                answer.without_effect, answer.remarks, answer.cannot_tell)  # fmt: skip
        found.append([fault.name, groups, phases, *rest])
    found.append([seen[:2], seen[-2:], len(seen)])
    return words(plain(found))


def moved(name: str) -> Any:
    """Every way of every move, and a step without each cause of idle time."""
    scenario = small(name)
    ways = [
        [one.name, one.exact, one.missing(scenario) or [list(way.values()) for way in one.ways(scenario)]]
        for one in moves()
    ]
    without = [[one.name, one.how, simulate_variant(scenario, changes=[one]).phases_s] for one in causes_of(scenario)]
    rungs = [one.missing(scenario) for one in ideals("rung")]
    return words(plain([ways, without, rungs, faster_calls(scenario, 0.8)]))


def climbed(name: str) -> Any:
    """The ladder of a small scenario and its idle time, with what taking the causes away gains."""
    scenario, found = small(name), list[Any]()
    for answer in (headroom, blame):
        try:
            told = answer(scenario).as_dict()
            found.append({key: told[key] for key in told if key not in ("digest", "scenario")})
        except (Infeasible, InputError) as error:
            found.append(str(error))
    return words(plain(found))


CASES: dict[str, Callable[[], Any]] = {
    f"{case}, {name}": partial(call, name)
    for case, call in (("faults", under_faults), ("moves", moved), ("explained", explained), ("ladder", climbed))
    for name in SCENARIOS
}
"""Calls by case."""
