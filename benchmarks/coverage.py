"""Whether the simulation's stated error holds the long-run mean: ``python benchmarks/coverage.py [--seeds 20]``

For 69 small scenarios (rules of dispatch, styles of asynchrony, tails, agents) the step of each seed, as exact as
``project`` asks for, beside the mean of many other replications: the share of 90 % intervals of the simulation's own
error that hold it, by kind and together. One that is right holds it in 90 % of all cases.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from scale import DISPATCH, STYLES
from scipy.stats import t as student_t

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.precision import precise
from rlsim.projection.summary import phase_estimate, sampling_error
from rlsim.projection.variant import simulate_variant
from rlsim.schema.scenario import MAX_SIMULATED_STEPS, Scenario

SMALL = ("workload.prompts_per_step=16", "speculation.method=none")
SPLIT = ("cluster.generation_gpus=4", "cluster.training_gpus=4", "loop.mode=async", "loop.in_flight_updates=null")
TAILS = {
    "capped": (),
    "long": ("workload.response_tokens={kind: lognormal, mean_tokens: 1000, log_sigma: 1.2}",),
    "agents": (
        "workload.response_tokens={kind: lognormal, mean_tokens: 200, log_sigma: 0.8}",
        "workload.agent={turns: {kind: lognormal, mean_turns: 4}, max_turns: 12, environment_s: "
        "{kind: lognormal, mean_s: 3, log_sigma: 1.0}, observation_tokens: {kind: constant, tokens: 100}}",
    ),
}
FURTHER = {
    "sync dynamic sampling": ("workload.usable_group_share=0.5",),
    "sync tail batching": ("workload.tail_batching={prompts_factor: 1.25, samples_factor: 1.25}",),
    "sync fast drafts": ("speculation.method=eagle3", "speculation.draft_length=4", "speculation.acceptance_length=3"),
}
TRUE_SHARE = 0.25
"""Standard error of the long run as a share of the precision that is judged by it: 3 % is then added to it."""
MOST_RUNS = 24
"""Seeds of the long run at most, each of all steps that a scenario may simulate."""


def cases() -> Iterator[tuple[str, str, Scenario]]:
    """Kind, name and scenario of every case."""
    for tail, moves in TAILS.items():
        for dispatch in DISPATCH:
            kind = "sync agents" if tail == "agents" else "sync"
            yield (
                kind,
                f"{dispatch} {tail}",
                load_scenario("quickstart", [*SMALL, *moves, f"engine.dispatch={dispatch}"]),
            )
        for style, lag in STYLES.items():
            for more in (lag or ("loop.policy_lag=1",), *([()] if lag else [("loop.policy_lag=2",)])):
                if not more:
                    continue
                rules = [*SMALL, *SPLIT, *moves, f"loop.style={style}", *more]
                kind = "async agents" if tail == "agents" else "async"
                yield kind, f"{style} {tail} {more[0]}", load_scenario("quickstart", rules)
    for name, moves in FURTHER.items():
        yield "sync", name, load_scenario("quickstart", [*SMALL, *moves])


def long_run_s(scenario: Scenario, error: float) -> float:
    """Mean seconds of a step over as many other seeds as it takes to know it to a relative ``error``.

    One seed of 1,600 steps leaves 0.9 % of the agents whose step is as long as their slowest environment: as much as
    what is judged by it.
    """
    many = MAX_SIMULATED_STEPS // scenario.measured_steps.stop
    replications: list[float] = []
    for seed in range(10_000, 10_000 + MOST_RUNS):
        run = simulate_variant(vary(scenario, {"simulation.seed": seed, "simulation.replications": many}), tokens=False)
        replications += [float(row.mean()) for row in run.values(lambda step: step.seconds)]
        if sampling_error(replications) <= error * np.mean(replications):
            break
    return float(np.mean(replications))


def main() -> None:
    """Run all cases and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--precision", type=float, default=0.01)
    options = parser.parse_args()
    by_kind: dict[str, list[float]] = defaultdict(list)
    for kind, name, scenario in cases():
        true_s, held, errors = long_run_s(scenario, TRUE_SHARE * options.precision), [], []
        for seed in range(options.seeds):
            one = vary(scenario, {"simulation.seed": seed, "simulation.precision": options.precision})
            step = phase_estimate(precise(simulate_variant(one, tokens=False)), "step")
            errors.append(step.error)
            held.append(abs(true_s / step.mean - 1.0) <= step.error * student_t.ppf(0.95, step.degrees))
        by_kind[kind].append(float(np.mean(held)))
        print(f"{kind:14s} {name:50s} {np.mean(held):5.0%}  stated error {np.mean(errors):.2%}", flush=True)
    for kind, shares in by_kind.items():
        print(f"{kind}: {np.mean(shares):.1%} of {len(shares)} scenarios x {options.seeds} seeds")
    print(f"all: {np.mean([share for shares in by_kind.values() for share in shares]):.1%}")


if __name__ == "__main__":
    main()
