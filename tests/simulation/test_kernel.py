"""The C kernel against the Python reference: equal bits in whatever both tell."""

import ctypes
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_costs import PROMPT, Driven, FixedCosts, World, rules, run, world_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rollout_cases import cost_table, make_batch, sample_lists, services, tables, told, traced

from rlsim.errors import Infeasible, InputError
from rlsim.files import kernel as build
from rlsim.files.kernel import FLAGS, FOLDER, VARIABLE, compiler
from rlsim.simulation.kernel.engines import PAUSES_PER_STEP
from rlsim.simulation.kernel.library import implementation
from rlsim.simulation.pool import Fleet
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import rollout
from rlsim.workload.batches import Batch

DISPATCH = st.sampled_from(["static", "round_robin", "least_loaded", "shared_queue"])
RANDOM = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def batch_of(samples: list[Request]) -> tuple[Batch, Any]:
    """A batch whose groups may come in any order, and its iterations."""
    _, group, prompt, response, iterations, _ = map(np.asarray, zip(*samples, strict=True))
    return Batch(prompt, response, group), iterations


@RANDOM
@given(data=st.data(), dispatch=DISPATCH, replicas=st.integers(1, 4), prefix_caching=st.booleans(), service=services())
def test_rollouts_are_those_of_the_reference(both, data, dispatch, replicas, prefix_caching, service):
    """Slots, tight KV cache, eviction, chunked and unmixed prefill, shared prompts, speculation, prefills elsewhere."""
    table = data.draw(tables())
    batch, iterations = batch_of(data.draw(sample_lists(table.tokens_per_sequence, most=60)))
    fleet = Fleet(replicas, dispatch, table, prefix_caching, prefill=None if dispatch == "shared_queue" else service)
    fast, slow = both(lambda: told(rollout(batch, iterations, fleet)))
    assert fast == slow


@pytest.mark.parametrize("dispatch", ["static", "shared_queue"])
@pytest.mark.parametrize("chunked", [True, False])
def test_many_evictions_are_those_of_the_reference(both, dispatch, chunked):
    """A heap full of entries of evicted sequences is cleared in between."""
    table = cost_table(max_running_sequences=24, max_batched_tokens=64, kv_capacity_tokens=900.371717,
                       chunked_prefill=chunked)  # fmt: skip
    rng = np.random.default_rng(7)
    responses = rng.integers(1, 400, 300).tolist()
    batch = make_batch(rng.integers(1, 60, 300).tolist(), responses, group_size=5)
    iterations = np.maximum((batch.response_tokens - 1) // 2, 0)
    fast, slow = both(lambda: told(rollout(batch, iterations, Fleet(3, dispatch, table))))
    assert fast == slow
    assert slow["preemptions"] > 500


LOOPS: dict[str, Any] = {"loop__poll_s": st.sampled_from([0, 0.5, 3]),
                         "workload__environment_s": st.sampled_from([0, 0, 2.5]),
                         "workload__generated_batch_factor": st.sampled_from([1, 1, 1.4]), "engine__dispatch": DISPATCH,
                         "engine__prefix_caching": st.booleans(), "simulation__warmup_steps": st.integers(0, 2),
                         "simulation__seed": st.integers(0, 10_000)}  # fmt: skip
LONG = 700
"""Tokens of the longest sample of a loop."""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Asynchronous loops on engines with few slots, a small token budget and a KV cache of one long sample or more."""
    overrides = [f"{name.replace('__', '.')}={str(draw(value)).lower()}" for name, value in LOOPS.items()]
    world = world_of(
        FixedCosts(train_s=draw(st.sampled_from([0.0, 1.0, 30.0, 300.0])),
                   refit_s=draw(st.sampled_from([0.0, 0.7, 11.0]))),
        "workload.response_tokens={kind: lognormal, mean_tokens: 200, log_sigma: 0.8}",
        f"workload.max_sequence_tokens={LONG}", "simulation.steps=6", *overrides, *draw(rules()),
        lag=draw(st.integers(1, 4)), prompts=draw(st.integers(1, 6)), size=draw(st.integers(1, 4)),
        replicas=draw(st.integers(1, 5)),
    )  # fmt: skip
    table = cost_table(max_running_sequences=draw(st.integers(1, 8)),
                       max_batched_tokens=draw(st.sampled_from([16, 60, 8192])),
                       kv_capacity_tokens=LONG + draw(st.sampled_from([1, 40, 300, 1e6])) + 0.371717,
                       chunked_prefill=draw(st.booleans()))  # fmt: skip
    service = None if world.scenario.engine.dispatch == "shared_queue" else draw(services())
    return replace(world, prices=replace(world.prices, iteration=table, prefill=service))


@RANDOM
@given(world=worlds(), detailed=st.booleans())
def test_asynchronous_loops_are_those_of_the_reference(both, world, detailed):
    """Every style and rule: pauses, recomputed caches, restarts, cancelled and dropped groups, draining, polls,
    rewards, eviction, every dispatch."""
    fast, slow = both(lambda: traced(world, detailed))
    assert fast == slow


def test_the_loops_reach_eviction_and_recomputation(both):
    """A guard for the test above: pauses and recomputations meet a cache too small for its slots."""
    table = cost_table(max_running_sequences=8, max_batched_tokens=60, kv_capacity_tokens=LONG + 40.371717)
    overrides = ("loop.recompute_kv=true", "workload.max_sequence_tokens=700", "simulation.steps=6")
    world = world_of(FixedCosts(), *overrides, lag=2, prompts=6, size=4, tokens=500)
    fast, slow = both(lambda: traced(replace(world, prices=replace(world.prices, iteration=table)), True))
    assert fast == slow
    assert slow["counters"]["preemptions"] > 50
    assert slow["counters"]["prefill_tokens"] > 6 * 24 * PROMPT


def wait_in_vain() -> None:
    driven = Driven(world_of(FixedCosts(), lag=1, tokens=5))
    assert driven.waited(driven.generation.drain()) == 1.0
    assert driven.generation.in_flight == 0
    driven.waited(driven.generation.batch(1))


def run_a_sample_that_cannot_fit() -> None:
    world = world_of(FixedCosts(), lag=1, lengths={1: [401] * 7 + [4001]})
    table = replace(world.prices.iteration, kv_capacity_tokens=1000.0)
    run(replace(world, prices=replace(world.prices, iteration=table)))


def roll_out_a_sample_that_cannot_fit() -> None:
    batch = make_batch([10] * 5, [20, 20, 95, 20, 20])
    table = cost_table(max_running_sequences=2, kv_capacity_tokens=100.0)
    rollout(batch, batch.response_tokens - 1, Fleet(1, "shared_queue", table))


@pytest.mark.parametrize(("act", "kind", "told"), [
    (wait_in_vain, RuntimeError, "nobody generates"),
    (run_a_sample_that_cannot_fit, Infeasible, "KV cache"),
    (roll_out_a_sample_that_cannot_fit, Infeasible, "KV cache"),
])  # fmt: skip
def test_both_refuse_in_the_same_words(both, act, kind, told):
    def refused() -> str:
        with pytest.raises(kind, match=told) as error:
            act()
        return str(error.value)

    fast, slow = both(refused)
    assert fast == slow


def test_the_kernel_refuses_more_pauses_than_it_has_places_for(kernel):
    world = world_of(FixedCosts(), "simulation.steps=2", lag=1)
    engines = Driven(world).generation.engines
    groups = len(world.workload.steps) * (int(world.workload.steps[0].rollouts[0].batch.group[-1]) + 1)
    for now_s in range(PAUSES_PER_STEP * len(world.workload.steps) + groups):
        engines.pause(float(now_s), 0.5)
    with pytest.raises(ValueError, match="more pauses"):
        engines.pause(100.0, 0.5)


def test_a_library_of_other_sources_is_not_found_and_an_unknown_kernel_refused(kernel, monkeypatch, tmp_path):
    for path in build.FOLDER.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    assert build.library_path().exists()
    with (tmp_path / "pool.c").open("a", encoding="utf-8") as source:
        source.write("/* edited */")
    assert not build.library_path().exists()
    monkeypatch.setenv(VARIABLE, "fortran")
    with pytest.raises(InputError, match="RLSIM_KERNEL"):
        implementation()


def test_without_a_compiler_or_from_sources_that_do_not_compile_nothing_is_built(kernel, monkeypatch, tmp_path, capsys):
    (tmp_path / "broken.c").write_text("int main(", encoding="utf-8")
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    assert build.build() is None
    assert "does not compile" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["broken.c"]
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda word: None)
    assert build.build() is None
    assert "no C compiler" in capsys.readouterr().err


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
def test_memory_of_systems_without_large_pages_is_zero_and_on_cache_lines(tmp_path: Path) -> None:
    """Replicas are aligned to 64 bytes, which calloc does not promise (a Block: start, used, bytes)."""
    built = tmp_path / "memory.so"
    source = FOLDER / "memory.c"
    subprocess.run(
        [*compiler(), *FLAGS, "-fvisibility=default", "-DRLSIM_PLAIN_MEMORY", source, "-o", built], check=True
    )
    memory = ctypes.CDLL(str(built))
    blocks = [(ctypes.c_size_t * 3)(0, 64 * count, 0) for count in range(1, 40)]
    for block in blocks:
        assert memory.reserve(block)
        assert block[0] % 64 == 0
        assert not any(ctypes.string_at(block[0], block[2]))
        ctypes.memset(block[0], 1, block[2])  # what is given back must be zeroed when it comes again
    for block in blocks[1::2]:
        memory.release(block)
        block[1] = block[2]
        assert memory.reserve(block)
        assert not any(ctypes.string_at(block[0], block[2]))
