"""One pool of many beside all engines: how far it is off, by its own stated error. ``python benchmarks/scale.py``

For styles of asynchrony, rules of dispatch and tails of lengths the step of a sampled loop (``projection/scale.py``,
as exact as ``project`` asks for) stands beside that of all engines, with both standard errors, what doubling the pool
added and what all engines add to the pool, which shows the growth that is assumed. Prints the share of cases in which
the difference is within the 90 % interval of both errors.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection import scale
from rlsim.projection.precision import precise
from rlsim.projection.summary import phase_estimate
from rlsim.projection.variant import simulate_variant
from rlsim.schema.scenario import Scenario

STYLES = {
    "nemo_rl": (), "verl": ("loop.policy_lag=0", "loop.staleness_fraction=0.1"), "verl_v1": (), "skyrl": (),
    "slime": (), "areal": (), "roll": (), "openrlhf_partial": ("loop.policy_lag=0",), "nemo_rl_windowed": (),
    "slime_fully_async": (),
}  # fmt: skip
TAILS = {
    "narrow": ("workload.response_tokens.log_sigma=0.3",),
    "capped": ("workload.response_tokens.log_sigma=0.7",),
    "long": (
        "workload.response_tokens.log_sigma=1.0", "workload.max_sequence_tokens=65536",
        "trainer.micro_batch_tokens=65536",
    ),
    "agents": (
        "workload.response_tokens.mean_tokens=1000",
        "workload.agent={turns: {kind: lognormal, mean_turns: 4}, max_turns: 12, environment_s: "
        "{kind: lognormal, mean_s: 20, log_sigma: 1.0}, observation_tokens: {kind: constant, tokens: 300}}",
    ),
}  # fmt: skip
DISPATCH = ("round_robin", "static", "least_loaded", "shared_queue")
SAMPLED = 2**17
"""Samples from which on a pool is simulated here: the product's million would leave 8,192 GPUs as they are."""
WITHIN = 1.645
"""Standard errors of a 90 % interval."""


def cases(gpus: int) -> Iterator[tuple[str, Scenario]]:
    """Forty names and scenarios: every style with every tail, rules of dispatch in turn."""
    split = [f"cluster.num_gpus={gpus}", f"cluster.generation_gpus={gpus // 2}", f"cluster.training_gpus={gpus // 2}"]
    base = [*split, f"workload.prompts_per_step={gpus // 16}", "speculation.method=none", "simulation.steps=8"]
    for number, ((style, lag), (tail, moves)) in enumerate(itertools.product(STYLES.items(), TAILS.items())):
        dispatch = DISPATCH[(number + number // len(TAILS)) % len(DISPATCH)]  # not in step with the tails
        loop = [f"loop.style={style}", "loop.in_flight_updates=null", *(lag or ("loop.policy_lag=1",))]
        scenario = load_scenario("qwen235b_2048", [*base, *loop, *moves, f"engine.dispatch={dispatch}"])
        yield f"{style} {dispatch} {tail}", scenario


def compared(name: str, scenario: Scenario, replications: int) -> bool:
    """Print a case; whether the pool is within the interval of both errors."""
    begin = time.process_time()
    pool = precise(simulate_variant(scenario, tokens=False))
    middle = time.process_time()
    every = simulate_variant(vary(scenario, f"simulation.replications={replications}"), tokens=False)
    found, exact = phase_estimate(pool, "step"), phase_estimate(every, "step")
    off, error = found.mean / exact.mean - 1.0, math.hypot(found.error, exact.error)
    count, added = scale.pools_of(scenario), float(np.mean([trace.doubling["step"] for trace in pool.traces]))
    unmoved = found.mean - scale.carried(scenario)[0] * added
    inside = abs(off) <= WITHIN * error
    print(
        f"{name:42s} {exact.mean:8.2f} s  off {off:+7.2%} stated {found.error:6.2%} (all engines {exact.error:.2%})  "
        f"{'' if inside else 'OUTSIDE '} 1/{count}, {len(pool.traces)} replications, a doubling adds "
        f"{added / exact.mean:+.2%}, all {exact.mean / unmoved - 1.0:+.2%}, CPU "
        f"{(middle - begin) / len(pool.traces):.2f} / {(time.process_time() - middle) / replications:.2f} s each",
        flush=True,
    )
    return inside


def main() -> None:
    """Run all cases at each size and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[2**13, 2**15])
    parser.add_argument("--replications", type=int, default=4, help="of all engines")
    options: argparse.Namespace = parser.parse_args()
    scale.MOST_SAMPLES = SAMPLED
    sizes: Sequence[int] = options.gpus
    for gpus in sizes:
        held = [compared(name, scenario, options.replications) for name, scenario in cases(gpus)]
        print(f"{gpus:,} GPUs: {sum(held)} of {len(held)} within the 90 % interval of both errors", flush=True)


if __name__ == "__main__":
    main()
