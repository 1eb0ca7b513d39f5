"""Fused verification: Triton's interpreter gives what the definition gives with the same random numbers, and that is
distributed as the target; kernels compile for sm_90; the program that proves losslessness on a device notices errors.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from interpreted_kernels import CALLS, SEED, SHAPES, TEMPERATURE

from bench import losslessness
from bench.fused_verification import missing_for
from bench.losslessness import THRESHOLD, Problem, Setting, chi_square, chi_square_survival, count_tokens, fits_of
from bench.operators import prepare
from bench.rejection import Draft, sampling_probabilities, verify
from bench.workbench import UnsupportedError, Workbench
from rlsim.calibration.cases import fused_verification

CPU = torch.device("cpu")
HERE = Path(__file__).parent
SETTING = Setting("test", 32, 24, 3, 0.8, torch.float32, 2048)


def philox(index: np.ndarray, sequence: np.ndarray, call: int, purpose: int) -> list[np.ndarray]:
    """Philox4x32-10 as Salmon et al. (2011) define it."""
    low = np.uint64(0xFFFFFFFF)
    shape = np.broadcast(index, sequence).shape
    c = [np.broadcast_to(np.asarray(part, dtype=np.uint64), shape) for part in (index, sequence, call, purpose)]
    keys = [SEED & 0xFFFFFFFF, SEED >> 32]
    for _ in range(10):
        first, second = (c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57))
        c = [(second >> np.uint64(32)) ^ c[1] ^ np.uint64(keys[0]), second & low,
             (first >> np.uint64(32)) ^ c[3] ^ np.uint64(keys[1]), first & low]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def reference(target: np.ndarray, draft: np.ndarray, drafted: np.ndarray, call: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and counts by the definition, from p [B, k+1, V], q [B, k, V] over the target's vocabulary, and the random
    numbers of the kernel.
    """
    batch, rows_each, vocabulary = target.shape
    k, rows = rows_each - 1, np.arange(batch)
    word = philox(np.arange(k), rows[:, None], call, 1)[0]
    uniform = (word >> np.uint64(8)).astype(float) * 2.0**-24
    target_at = np.take_along_axis(target[:, :k], drafted[..., None], -1)[..., 0]
    draft_at = np.take_along_axis(draft, drafted[..., None], -1)[..., 0]
    accepted = (uniform * draft_at < target_at).astype(int).cumprod(1).sum(1)
    base = target[rows, accepted]
    padded = np.concatenate([draft, np.zeros_like(target[:, :1])], 1)
    residual = np.maximum(base - padded[rows, accepted], 0.0)
    # A quotient below the rounding of fp32 is none.
    weights = np.where(residual.sum(-1, keepdims=True) > 1e-6, residual, base)
    token = np.arange(vocabulary)
    words = np.stack(philox(token // 2048 * 512 + token % 512, rows[:, None], call, 0))
    chosen = np.take_along_axis(words, np.broadcast_to(token % 2048 // 512, (1, batch, vocabulary)), 0)[0]
    race = -np.log1p(-(chosen.astype(float) + 0.5) * 2.0**-32)
    tokens = np.concatenate([drafted, np.zeros((batch, 1), dtype=drafted.dtype)], 1)
    tokens[rows, accepted] = (weights / race).argmax(-1)
    return tokens, accepted + 1


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp((logits - logits.max(-1, keepdims=True)).astype(float) / TEMPERATURE)
    return weights / weights.sum(-1, keepdims=True)


def draft_of(held: dict[str, np.ndarray]) -> np.ndarray:
    """q [B, k, V] over the target's vocabulary."""
    logits, drafted = held["logits"], held["drafted"]
    q = np.zeros((*drafted.shape, logits.shape[-1]))
    if not held["probabilities"].size:
        np.put_along_axis(q, drafted[..., None], 1.0, -1)
        return q
    if not held["to_draft"].size:
        return held["probabilities"].astype(float)
    known = held["to_draft"] >= 0
    q[..., known] = held["probabilities"][..., held["to_draft"][known]]
    return q


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    pytest.importorskip("triton", reason="the kernels are Triton's")
    out = tmp_path_factory.mktemp("interpreted")
    done = run_program(HERE / "interpreted_kernels.py", out, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: dict(np.load(out / f"{number}.npz")) for number, name in enumerate(SHAPES)}


def run_program(program: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(program), *map(str, words)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_kernels_follow_the_definition_with_their_own_random_numbers(name: str, interpreted: dict) -> None:
    held = interpreted[name]
    target, q = softmax(held["logits"]), draft_of(held)
    for call in range(CALLS):
        tokens, count = reference(target, q, held["drafted"], call + 1)
        assert np.array_equal(held["counts"][call], count)
        assert np.array_equal(held["tokens"][call], tokens)
    assert held["state"].tolist() == [SEED, CALLS]
    assert not np.array_equal(held["tokens"][0], held["tokens"][1])


@pytest.mark.parametrize("name", SHAPES)
def test_greedy_kernels_emit_first_maxima(name: str, interpreted: dict) -> None:
    held = interpreted[name]
    first, followed = held["rounded"].argmax(-1), held["followed"]
    accepted = (first[:, :-1] == followed).astype(int).cumprod(1).sum(1)
    assert np.array_equal(held["greedy_count"], accepted + 1)
    for tokens, best, taken in zip(held["greedy_tokens"], first, accepted, strict=True):
        assert np.array_equal(tokens[: taken + 1], best[: taken + 1])


def test_a_kernel_that_ignored_the_draft_or_counted_no_calls_would_be_noticed(interpreted: dict) -> None:
    held = interpreted["k=3, reduced vocabulary"]
    target, q = softmax(held["logits"]), draft_of(held)
    right = held["tokens"][0]
    assert not np.array_equal(reference(target, np.zeros_like(q), held["drafted"], 1)[0], right)
    assert not np.array_equal(reference(target, q, held["drafted"], 2)[0], right)
    lengths = np.concatenate([one["counts"].ravel() for one in interpreted.values()])
    assert {1, 2, 3, 4, 8} <= set(lengths.tolist()), "every kind of end is there"


def emitted_by(sampler: losslessness.Sampler, setting: Setting, samples: int) -> list[losslessness.Fit]:
    problem, generator = Problem(setting, CPU, 3), torch.Generator().manual_seed(3)
    return fits_of(problem, count_tokens(problem, sampler, samples, generator))


def by_definition(setting: Setting) -> losslessness.Sampler:
    """The reference with the kernel's random numbers, as a sampler whose every call draws anew."""
    problem, calls = Problem(setting, CPU, 3), iter(range(1, 1000))
    target = np.broadcast_to(problem.target, (setting.rows, *problem.target.shape))
    q = np.broadcast_to(problem.draft, (setting.rows, *problem.draft.shape))

    def sampler(logits: torch.Tensor, temperature: float, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, count = reference(target, q, draft.tokens.numpy(), next(calls))
        return torch.from_numpy(tokens), torch.from_numpy(count)

    return sampler


def in_torch(logits: torch.Tensor, temperature: float, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
    return verify(sampling_probabilities(logits, temperature), draft, torch.Generator().manual_seed(next(SEEDS)))


SEEDS = iter(range(100, 10_000))


# One p-value in 10^4 is below THRESHOLD; seeds are fixed, so that the tests give one answer.
@pytest.mark.parametrize("width", [24, 32, 0])
def test_tokens_of_the_definition_are_distributed_as_the_target(width: int) -> None:
    setting = replace(SETTING, draft_vocabulary=width)
    for sampler in (by_definition(setting), in_torch):
        fits = emitted_by(sampler, setting, 32768)
        assert len(fits) == 6 and min(fit.p_value for fit in fits) > THRESHOLD
        assert all(fit.samples > 50 and fit.degrees > 0 for fit in fits)


def test_wrong_samplers_fail() -> None:
    def ignoring(logits: torch.Tensor, temperature: float, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
        return in_torch(logits, temperature, Draft(draft.tokens))

    def warmer(logits: torch.Tensor, temperature: float, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
        return in_torch(logits, 1.05 * temperature, draft)

    for wrong in (ignoring, warmer):
        assert min(fit.p_value for fit in emitted_by(wrong, SETTING, 65536)) < THRESHOLD
    impossible = chi_square("test", np.array([5, 1]), np.array([1.0, 0.0]))
    assert impossible.p_value == 0.0


@pytest.mark.parametrize("degrees", [1, 7, 63, 4000])
def test_p_values_are_those_of_the_chi_square_distribution(degrees: int) -> None:
    for quantile in (1e-9, 1e-4, 0.3, 0.7, 0.9999):
        statistic = scipy.stats.chi2.isf(quantile, degrees)
        assert chi_square_survival(statistic, degrees) == pytest.approx(quantile, rel=1e-6)
    fit = chi_square("die", np.array([8, 12, 9, 14, 6, 11]), np.full(6, 1 / 6))
    assert fit.degrees == 5 and fit.p_value == pytest.approx(scipy.stats.chisquare([8, 12, 9, 14, 6, 11]).pvalue)


def test_the_program_writes_every_test_and_exits_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(losslessness, "settings_for", lambda device, samples: [SETTING])
    words = ["--samples", "8192", "--kernel", "torch", "--out", str(tmp_path / "found.json")]
    assert losslessness.main(words) == 0
    answer = json.loads((tmp_path / "found.json").read_text())
    assert answer["passed"] and len(answer["tests"]) == 6
    assert {"kernel", "setting", "temperature", "test", "statistic", "degrees", "p_value", "total_variation",
            "samples"} == set(answer["tests"][0])  # fmt: skip
    monkeypatch.setattr(losslessness, "kernel_of", lambda *_: lambda logits, t, draft: in_torch(logits, 2.0 * t, draft))
    assert losslessness.main(words) == 1
    assert "a p-value is not above" in capsys.readouterr().out
    if not torch.cuda.is_available():
        assert losslessness.main(["--device", "cuda"]) == 2


def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the kernels are Triton's")
    done = run_program(HERE / "compile_kernels.py", TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("bytes for sm_90") == 10


def test_the_operator_runs_in_torch_and_says_why_the_kernels_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    on = Workbench(CPU)
    for k in (0, 3):
        tokens, count = prepare(fused_verification(2, k, 50, 20, "torch"), on).calls[0]()
        assert tokens.shape == (2, k + 1) and count.min() >= 1
    with pytest.raises(UnsupportedError, match=r"need a GPU|not installed"):
        prepare(fused_verification(2, 3, 50, 20), on)
    code = "import sys; sys.modules['triton'] = None; import torch; from bench.operators import missing_for as m; "
    code += "print(m(torch.device('cuda')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "triton is not installed\n"
    assert missing_for(CPU)
