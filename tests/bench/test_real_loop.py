"""The real loop: exact sampling with drafts, continuous batching, rules of lag, and the program that runs it alone."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import torch

import bench
from bench import BenchError
from bench.loop import engine as engine_module
from bench.loop.drafts import DraftModel
from bench.loop.engine import Engine, Request
from bench.loop.policy import copied, random_policy
from bench.loop.results import row_of, run_loop
from bench.loop.settings import LoopSettings, Samples, settings_from
from bench.loop.training import Trainer, advantages_of, rewards_of
from bench.speculation import Target

TINY = LoopSettings("tiny", "loop-tiny", prompt_tokens=4, prompts=2, samples=2, steps=2, quantiles=(0.0, 1.0),
                    response_tokens=(4.0, 20.0), running=3)  # fmt: skip
_TWO = {"draft_length": 2}
DRAFTED = {"none": {}, "model": {"drafter": "model", **_TWO}, "ngram": {"drafter": "ngram", **_TWO}}
SAMPLES, RESPONSE = 4096, 3
PROMPT = np.array([3, 7, 3, 7])
SEED = 5


def generated(settings: LoopSettings, samples: int, response: int, rows: int = 256) -> np.ndarray:
    """Responses [samples, response] of one prompt."""
    policy = random_policy(settings.dims, SEED)
    settings = replace(settings, running=rows, budget_tokens=1 << 20)
    engine = Engine(policy, settings, len(PROMPT) + response + settings.queries)
    engine.submit(Request(number, PROMPT, response) for number in range(samples))
    out = np.zeros((samples, response), dtype=np.int64)
    while (done := engine.iterate()) is not None:
        for one in done.finished:
            out[one.sample] = engine.tokens_of(one)[len(PROMPT) :]
    return out


def next_tokens(policy: Target, contexts: torch.Tensor) -> np.ndarray:
    """Distribution [n, V] of the token behind each context, as the trainer's forward pass sees it."""
    trainer = Trainer(copied(policy), TINY, contexts.shape[1] + 1)
    n, vocabulary = contexts.shape[0], policy.dims.vocabulary
    ends = torch.arange(vocabulary).repeat(n)[:, None]
    with torch.no_grad():
        found = trainer.logprobs_of(torch.cat([contexts.repeat_interleave(vocabulary, 0), ends], 1))[:, -1]
    return found.view(n, vocabulary).exp().double().numpy()


def marginals(policy: Target) -> list[np.ndarray]:
    """Exact distribution of the first and of the second token behind the prompt."""
    prompt = torch.from_numpy(PROMPT)[None]
    first = next_tokens(policy, prompt)[0]
    vocabulary = policy.dims.vocabulary
    longer = torch.cat([prompt.repeat(vocabulary, 1), torch.arange(vocabulary)[:, None]], 1)
    return [first, first @ next_tokens(policy, longer)]


def distance(tokens: np.ndarray, wanted: np.ndarray) -> float:
    """Total variation of what was drawn."""
    return 0.5 * float(np.abs(np.bincount(tokens, minlength=wanted.size) / tokens.size - wanted).sum())


# E[TV] <= sqrt(V / N) / 2, and TV exceeds its mean by 0.04 with probability below exp(-2 N 0.04^2) = 2e-6 (McDiarmid).
BOUND = 0.5 * (64 / SAMPLES) ** 0.5 + 0.04


@pytest.mark.parametrize("drafter", DRAFTED)
def test_tokens_are_distributed_as_the_policy_says_with_and_without_drafts(drafter: str) -> None:
    policy = random_policy(TINY.dims, SEED)
    drawn = generated(replace(TINY, **DRAFTED[drafter]), SAMPLES, RESPONSE)
    for place, wanted in enumerate(marginals(policy)):
        assert distance(drawn[:, place], wanted) < BOUND


@pytest.mark.parametrize("running", [1, 3, 8])
@pytest.mark.parametrize("drafter", DRAFTED)
def test_greedy_tokens_depend_neither_on_drafts_nor_on_the_batch(drafter: str, running: int) -> None:
    settings = replace(TINY, temperature=0.0)
    alone = generated(settings, 8, 12, rows=1)
    assert np.array_equal(generated(replace(settings, **DRAFTED[drafter]), 8, 12, rows=running), alone)


@pytest.mark.parametrize("drafter", DRAFTED)
def test_shapes_that_do_not_change_as_captured_graphs_want_them_change_no_token(
    drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(TINY, temperature=0.0, **DRAFTED[drafter])
    alone = generated(settings, 8, 12, rows=3)
    monkeypatch.setattr(engine_module, "capture", lambda calls, pool: calls[0])
    monkeypatch.setattr(engine_module, "warm_up", lambda calls: calls[0]())
    made = Engine.__init__

    def as_on_a_gpu(engine: Engine, *arguments: Any) -> None:
        made(engine, *arguments)
        models = [engine.cached] + ([engine.drafter.cached] if isinstance(engine.drafter, DraftModel) else [])
        for model in models:
            model.fixed = True
        engine.on_gpu = True
        engine.capture(range(1, 4))

    monkeypatch.setattr(Engine, "__init__", as_on_a_gpu)
    assert np.array_equal(generated(settings, 8, 12, rows=3), alone)


def test_rewards_count_even_tokens_and_updates_raise_rewarded_samples_whatever_the_micro_batches() -> None:
    tokens = np.array([[1, 2, 4, 6, 0], [2, 1, 3, 2, 0]])
    assert rewards_of(tokens, 2, np.array([2, 3])).tolist() == pytest.approx([1.0, 2 / 3])
    assert advantages_of(np.array([1.0, 3.0, 5.0, 5.0]), 2).tolist() == pytest.approx([-1.0, 1.0, 0.0, 0.0], abs=1e-5)
    found = []
    for micro_batch in (1, 4):
        settings = replace(TINY, micro_batch=micro_batch, learning_rate=1e-3)
        trainer = Trainer(random_policy(settings.dims, SEED), settings, 16)
        tokens = np.random.default_rng(0).integers(0, 64, (4, 12))
        samples = Samples(tokens, 4, np.full(4, 8), np.array([0.0, 1.0, 0.0, 1.0]))
        before = trainer.logprobs(samples)
        trainer.update(samples, before)
        change = torch.cat(trainer.logprobs(samples)) - torch.cat(before)
        found.append(change[:, 3:].sum(1).numpy())
    assert (found[0][[1, 3]] > found[0][[0, 2]]).all()
    assert np.allclose(found[0], found[1], atol=1e-3)


def test_a_synchronous_run_journals_every_sample_and_phase() -> None:
    log = run_loop(TINY)
    samples = [one for one in log.events if one["event"] == "sample"]
    assert [one["response_tokens"] for one in sorted(samples, key=lambda one: one["sample"])] == (
        TINY.response_lengths()[: TINY.trained_steps].ravel().tolist()
    )
    assert all(one["iterations"] == one["response_tokens"] - 1 for one in samples)
    phases = Counter(one["phase"] for one in log.events if one["event"] == "phase")
    assert phases == dict.fromkeys(("prepare_s", "generation_s", "data_s", "logprob_s", "train_s"), TINY.trained_steps)
    most = max(one["decoding"] for one in log.events if one["event"] == "iteration")
    assert most == TINY.running


@pytest.mark.parametrize("lag", [0, 2])
def test_a_lagged_run_keeps_the_rules_of_its_style(lag: int) -> None:
    settings = replace(TINY, placement="split", lag=lag, steps=3)
    log = run_loop(settings)
    started = {one["group"]: one["version"] for one in log.events if one["event"] == "start"}
    ages = {group // settings.prompts - version for group, version in started.items()}
    assert ages <= set(range(lag + 1))
    assert list(started) == sorted(started)
    assert len(started) >= settings.trained_steps * settings.prompts
    row = row_of(settings, log.events)
    phases = row["phases"]
    chain = ("exposed_generation_s", "data_s", "logprob_s", "train_s", "refit_s")
    assert sum(phases[name]["measured_s"] for name in chain) <= row["measured_s"]


run = partial(programs.run, module="bench.loop")


def test_the_loop_runs_where_there_is_no_rlsim(tmp_path: Path) -> None:
    shutil.copytree(Path(bench.__file__).parent, tmp_path / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    options = ("--set", "model=loop-tiny", "--set", "prompts=1", "--set", "steps=1", "--set", "samples=2")
    done = run(tmp_path, programs.NOT_ON_THE_MEASURED_MACHINE, "--json", *options, "--journal",
               str(tmp_path / "journals"))  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["schema"] == "rlsim.loop/1"
    row = answer["rows"][0]
    assert row["measured_s"] > 0
    assert row["predicted_s"] is None
    assert set(row["phases"]) == {"data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "refit_s",
                                  "exposed_generation_s"}  # fmt: skip
    assert (tmp_path / "journals" / "round_1" / "loop.jsonl").is_file()


def test_the_smoke_run_covers_every_mechanism() -> None:
    done = subprocess.run([sys.executable, "-m", "bench.loop", "--smoke", "--json"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["rows"]
    assert [row["name"] for row in rows] == ["smoke sync", "smoke drafts", "smoke ngram", "smoke lag 1"]
    assert [row["tokens_per_verification"] > 1 for row in rows] == [False, True, True, False]


@pytest.mark.parametrize(("words", "told"), [
    (("--set", "prompt=2"), "'prompt' is no setting of the loop"),
    (("--set", "steps=0"), "steps must be at least 1, got 0"),
    (("--set", "lag=1"), "lag 1 needs placement split"),
    (("--set", "model=gpt"), "model must be one of loop-0.5b, loop-5m, loop-tiny; got 'gpt'"),
    (("--set", "steps"), "--set takes KEY=VALUE, got 'steps'"),
    (("--settings", "none.json"), "cannot read none.json"),
])  # fmt: skip
def test_what_cannot_run_is_one_line_and_exit_code_2(words: tuple[str, ...], told: str) -> None:
    done = run(Path.cwd(), [], *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_settings_that_do_not_fit_and_a_missing_torch_are_one_message(tmp_path: Path) -> None:
    done = run(Path.cwd(), ["torch"])
    assert (done.returncode, done.stderr) == (2, "error: the loop needs torch and numpy (pip install torch numpy)\n")
    with pytest.raises(BenchError, match="lengths needs 3 steps of 4 lengths"):
        settings_from({"model": "loop-tiny", "prompts": 2, "samples": 2, "steps": 2, "lengths": [[1, 2, 3, 4]]})
    with pytest.raises(BenchError, match="has no value of its type"):
        settings_from({"steps": "many"})
