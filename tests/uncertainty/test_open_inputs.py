"""What a scenario guesses, and what an engine may capture, is in its interval and in its verdict."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.compare import compare
from rlsim.planning.sweep import sweep
from rlsim.projection.project import project
from rlsim.projection.uncertainty.predictive import open_draws, prediction_of
from rlsim.projection.uncertainty.sources import sources_of
from rlsim.projection.variant import simulate_variant
from rlsim.report.text.planning import render_comparison, render_sweep
from rlsim.report.text.projection import render_brief
from rlsim.results import Interval
from rlsim.schema.scenario import Scenario

SMALL = ("workload.prompts_per_step=16", "simulation.replications=2", "speculation.method=none")
GUESS: dict[str, Any] = {"text": "half of the cap", "keys": ["workload.response_tokens"], "log_spread": 0.5}


def width(interval: Interval) -> float:
    return interval.high / interval.low


def guessing(*overrides: str) -> Scenario:
    return vary(load_scenario("quickstart", [*SMALL, *overrides]), {"assumptions": [GUESS]})


@pytest.mark.parametrize("loop", [(), ("lag=1",)])
def test_a_guessed_length_is_in_the_interval_as_lengths_move_the_step(loop: tuple[str, ...]) -> None:
    known, guessed = project(load_scenario("quickstart", [*SMALL, *loop])), project(guessing(*loop))
    assert guessed.candidate.step_s.mean == known.candidate.step_s.mean
    mean = load_scenario("quickstart").workload.response_tokens.mean_tokens  # type: ignore[union-attr]
    low = project(vary(guessing(*loop), f"workload.response_tokens.mean_tokens={mean * np.exp(-0.5 * 1.2816)}"))
    assert guessed.candidate.step_s.low < low.candidate.step_s.mean < known.candidate.step_s.low
    assert width(guessed.candidate.step_s) > 1.5 * width(known.candidate.step_s)
    assert "guessed" in " ".join(one.source for one in (guessed.support.sources if guessed.support else ()))


def test_the_verdict_names_guesses_and_keeps_no_simulation() -> None:
    answer = render_brief(project(guessing()))
    assert "on 8 h100_sxm, with 800 response tokens assumed" in " ".join(answer.split())
    stated = render_brief(project(vary(guessing(), "workload.response_tokens.mean_tokens=800")))
    assert "assumed." not in stated.splitlines()[0]
    assert "With 800 response tokens assumed." in render_sweep(sweep(guessing(), ["engine.tensor_parallel=1,2"]))
    with pytest.raises(InputError, match="log_spread needs keys that begin with one of workload"):
        vary(load_scenario("quickstart"), {"assumptions": [{**GUESS, "keys": ["engine.name"]}]})
    run = simulate_variant(guessing())
    found = sources_of(run)
    assert sum(one.share for one in found) == pytest.approx(1, abs=1e-9)
    assert found[0].name == "800 response tokens: guessed"
    run = simulate_variant(load_scenario("quickstart", SMALL))
    assert prediction_of(run) is prediction_of(run)
    open_draws(run)
    alive = weakref.ref(run)
    del run
    gc.collect()
    assert alive() is None


def test_heads_behind_contexts_that_they_do_not_know_may_accept_less() -> None:
    base = load_scenario("quickstart", ["workload.prompts_per_step=16", "simulation.replications=2"])
    known, short, any_context = (
        project(vary(base, f"speculation.trained_context_tokens={tokens}")) for tokens in ("null", 64, 10**6)
    )
    assert known.rollout_speedup == any_context.rollout_speedup  # responses of 800 tokens are known to every head
    assert short.rollout_speedup.mean == known.rollout_speedup.mean
    assert short.rollout_speedup.low < 0.9 * known.rollout_speedup.low
    told = [text for text in short.warnings if "trained_context_tokens" in text]
    assert len(told) == 1 and "64 tokens" in told[0]
    assert not any("trained_context_tokens" in text for text in known.warnings)
    stated = vary(base, {"speculation.trained_context_tokens": 64, "speculation.variation.trend_per_1k_tokens": -0.01})
    assert not any("trained_context_tokens" in text for text in project(stated).warnings)


def test_neighbours_on_both_sides_of_an_assumed_cliff_overlap_and_every_command_warns() -> None:
    """12 sequences x (k + 1) tokens meet the 512 captured tokens between k = 7 and k = 8 in the larger study."""
    base = load_scenario("qwen235b_512", ["speculation.first_acceptance=0.75", "simulation.replications=1"])
    before, after = (project(vary(base, f"k={k}")) for k in (7, 8))
    assert before.rollout_speedup.mean > 1.4 * after.rollout_speedup.mean  # the cliff
    assert before.rollout_speedup.low < after.rollout_speedup.mean < before.rollout_speedup.mean
    assert after.rollout_speedup.high > 0.9 * before.rollout_speedup.mean
    assert any("half of it the engines would need" in text for text in before.warnings)
    stated = project(vary(base, "k=7", "engine.max_captured_tokens=512"))
    assert width(stated.rollout_speedup) < 0.8 * width(before.rollout_speedup)
    told = " ".join(render_sweep(sweep(base, ["k=7,8"])).split())
    assert "1 of 2 go beyond the largest captured CUDA graph (512 tokens" in told and "(k=8)" in told
    compared = render_comparison(compare(vary(base, "k=7"), vary(base, "k=8")))
    assert "B: " in compared and "exceed the largest captured CUDA graph" in " ".join(compared.split())
