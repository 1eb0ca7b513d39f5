"""``python -m bench.losslessness --device cuda --samples 1000000 --out FILE.json``: is what verification emits
distributed exactly as the target?

Tokens are drafted from q, verified against p, and counted: at every position that was reached, jointly at the first
two, and how many drafts were accepted. Each count is compared with theory by Pearson's chi-square test. Exit code 0
where every p-value is above the threshold, 1 where one is not, 2 where the run cannot be made. Needs torch and numpy,
and triton for the fused kernels.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench import BenchError
from bench.cases import write_whole
from bench.fused_verification import KERNELS, draft_indices, fused_verify, missing_for, random_state
from bench.rejection import Draft, sampling_probabilities, verify

SCHEMA = "rlsim.losslessness/1"
THRESHOLD = 1e-4
"""Least p-value: of some hundred tests of right kernels one is below it in about one run of a hundred."""
_LEAST_EXPECTED = 5.0
"""Categories with fewer expected counts are merged, as Pearson's approximation asks for."""
_LARGE_SHARE = 10
"""A large vocabulary gets this fraction of the samples."""
_BINS = 128

Sampler = Callable[[Tensor, float, Draft], tuple[Tensor, Tensor]]
"""From logits, temperature and draft to tokens and count, as ``rejection.verify`` gives them."""


@dataclass(frozen=True)
class Setting:
    """Distributions to test with. draft_vocabulary: 0 for a deterministic draft; rows: sequences of one call."""

    name: str
    vocabulary: int
    draft_vocabulary: int
    draft_length: int
    temperature: float
    dtype: torch.dtype
    rows: int


@dataclass(frozen=True)
class Fit:
    """One comparison of counts with theory. statistic: Pearson's; total_variation: of the counted shares."""

    test: str
    statistic: float
    degrees: int
    p_value: float
    total_variation: float
    samples: int


def settings_for(device: torch.device, samples: int) -> list[Setting]:
    """Small vocabularies, of which every token is counted, and that of a model."""
    rows, large_rows = (65536, 1024) if device.type == "cuda" else (4096, 16)
    rows, large_rows = min(rows, samples), min(large_rows, -(-samples // _LARGE_SHARE))
    drafts = {"reduced": 48, "same": 64, "one-hot": 0}
    small = [
        Setting(f"{name}, V=64", 64, width, 4, temperature, torch.float32, rows)
        for name, width in drafts.items()
        for temperature in (0.6, 1.0, 1.5)
    ]
    large = [
        Setting(f"{name}, V=151936", 151936, width, 2, 1.0, torch.bfloat16, large_rows)
        for name, width in {"reduced": 32000, "one-hot": 0}.items()
    ]
    return small + large


class Problem:
    """The distributions of one setting, on the device for kernels and in fp64 for theory; the same for all sequences,
    another at each position.
    """

    def __init__(self, setting: Setting, device: torch.device, seed: int) -> None:
        self.setting, k, vocabulary = setting, setting.draft_length, setting.vocabulary
        draws = np.random.default_rng(seed)
        # Tokens of a draft are some of the target's; similar logits, so that later positions are reached often.
        wanted = draws.normal(0.0, 1.5, (k + 1, vocabulary))
        width = setting.draft_vocabulary or vocabulary
        chosen = draws.permutation(vocabulary)[:width] if width < vocabulary else np.arange(vocabulary)
        drafted = 0.9 * wanted[:k, chosen] + draws.normal(0.0, 0.5, (k, width))
        logits = torch.tensor(wanted, device=device).to(setting.dtype)
        self.logits = logits.expand(setting.rows, -1, -1).contiguous()
        self.target = _softmax(logits.double().cpu().numpy() / setting.temperature)
        self.draft = np.zeros_like(self.target[:k])
        self.deterministic = setting.draft_vocabulary == 0
        if self.deterministic:
            self.draft[np.arange(k), drafted.argmax(-1)] = 1.0
            self.certain = torch.tensor(drafted.argmax(-1), device=device).expand(setting.rows, -1).contiguous()
            return
        probabilities = torch.tensor(_softmax(drafted), device=device, dtype=torch.float32)
        self.draft[:, chosen] = probabilities.double().cpu().numpy()
        self.distribution = probabilities
        self.probabilities = probabilities.expand(setting.rows, -1, -1).contiguous()
        self.to_target = torch.tensor(chosen, device=device) if width < vocabulary else None

    def drafted(self, generator: torch.Generator) -> Draft:
        """New drafts of all sequences."""
        if self.deterministic:
            return Draft(self.certain)
        rows = self.setting.rows
        indices = torch.multinomial(self.distribution, rows, replacement=True, generator=generator).t().contiguous()
        tokens = indices if self.to_target is None else self.to_target[indices]
        return Draft(tokens, self.probabilities, indices, self.to_target)


def kernel_of(name: str, problem: Problem, generator: torch.Generator, seed: int) -> Sampler:
    """Verification by the torch operators or by the Triton kernels."""
    device = problem.logits.device
    if name == "torch":
        return lambda logits, temperature, draft: verify(sampling_probabilities(logits, temperature), draft, generator)
    state, to_draft = random_state(seed, device), None
    if not problem.deterministic and problem.to_target is not None:
        to_draft = draft_indices(problem.to_target, problem.setting.vocabulary)
    return lambda logits, temperature, draft: fused_verify(logits, temperature, draft, state, to_draft)


@dataclass(frozen=True)
class Counts:
    """What was emitted. tokens: [k+1, V] at each position; pairs: [V, V] at the first two, where V is small; accepted:
    [k+1] sequences by accepted drafts.
    """

    tokens: np.ndarray
    pairs: np.ndarray | None
    accepted: np.ndarray


def count_tokens(problem: Problem, sampler: Sampler, samples: int, generator: torch.Generator) -> Counts:
    """Counts of at least ``samples`` sequences; nothing waits for the device until the end."""
    setting, device = problem.setting, problem.logits.device
    k, vocabulary = setting.draft_length, setting.vocabulary
    tokens = torch.zeros((k + 1) * vocabulary, dtype=torch.int64, device=device)
    pairs = torch.zeros(vocabulary**2 if vocabulary <= 256 else 0, dtype=torch.int64, device=device)
    accepted = torch.zeros(k + 1, dtype=torch.int64, device=device)
    place = torch.arange(k + 1, device=device)
    for _ in range(-(-samples // setting.rows)):
        emitted, count = sampler(problem.logits, setting.temperature, problem.drafted(generator))
        reached = (place < count[:, None]).long()
        tokens.scatter_add_(0, (place * vocabulary + emitted).flatten(), reached.flatten())
        accepted.scatter_add_(0, count - 1, torch.ones_like(count))
        if pairs.numel():
            pairs.scatter_add_(0, emitted[:, 0] * vocabulary + emitted[:, 1], reached[:, 1])
    square = pairs.view(vocabulary, vocabulary).cpu().numpy() if pairs.numel() else None
    return Counts(tokens.view(k + 1, vocabulary).cpu().numpy(), square, accepted.cpu().numpy())


def fits_of(problem: Problem, counts: Counts) -> list[Fit]:
    """All comparisons of one setting with theory."""
    target, k = problem.target, problem.setting.draft_length
    overlap = np.minimum(target[:k], problem.draft)
    reached = np.concatenate([[1.0], overlap.sum(-1).cumprod()])
    found = [chi_square("accepted drafts", counts.accepted, reached - np.append(reached[1:], 0.0))]
    for place in range(k + 1):
        for name, bins in _binnings(problem.setting.vocabulary):
            seen, wanted = (np.bincount(bins, each) for each in (counts.tokens[place], target[place]))
            found.append(chi_square(f"token {place + 1}{name}", seen, wanted))
    if counts.pairs is not None and k:
        # The second token is emitted in the same step where the first is an accepted draft, distributed as min(p, q).
        first = overlap[0] / overlap[0].sum()
        found.append(chi_square("tokens 1 and 2", counts.pairs.ravel(), np.outer(first, target[1]).ravel()))
    return found


def _binnings(vocabulary: int) -> list[tuple[str, np.ndarray]]:
    """Categories by token: tokens themselves, or ranges and residues, which show errors by block and by lane."""
    ids = np.arange(vocabulary)
    if vocabulary <= 256:
        return [("", ids)]
    return [(" by range", ids * _BINS // vocabulary), (" by residue", ids % _BINS)]


def chi_square(test: str, counted: np.ndarray, wanted: np.ndarray) -> Fit:
    """Pearson's test of counts against probabilities; rare categories are merged. A count where the probability is 0
    fails.
    """
    samples = int(counted.sum())
    if samples == 0:
        return Fit(test, 0.0, 0, 1.0, 0.0, 0)
    distance = 0.5 * float(np.abs(counted / samples - wanted).sum())
    if counted[wanted <= 0.0].any():
        return Fit(test, math.inf, 0, 0.0, distance, samples)
    order = np.argsort(wanted)
    expected, seen = samples * wanted[order], counted[order].astype(float)
    # The rarest together, and as many more as make them frequent enough.
    merged = int(np.searchsorted(expected, _LEAST_EXPECTED))
    while 0 < merged < expected.size and expected[:merged].sum() < _LEAST_EXPECTED:
        merged += 1
    if merged:
        expected, seen = (np.append(each[merged:], each[:merged].sum()) for each in (expected, seen))
    statistic, degrees = float(((seen - expected) ** 2 / expected).sum()), expected.size - 1
    p_value = chi_square_survival(statistic, degrees) if degrees else 1.0
    return Fit(test, statistic, degrees, p_value, distance, samples)


def chi_square_survival(statistic: float, degrees: int) -> float:
    """Probability that a chi-square variable exceeds ``statistic``: the regularised upper incomplete gamma function,
    by its series below the mean and by Lentz's continued fraction above (Numerical Recipes, 6.2).
    """
    shape, x = degrees / 2.0, statistic / 2.0
    if x <= 0.0:
        return 1.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1.0:
        term = total = 1.0 / shape
        step = shape
        while term > total * 1e-16:
            step += 1.0
            term *= x / step
            total += term
        return max(0.0, 1.0 - total * scale)
    below = x + 1.0 - shape
    above, inverse = 1e300, 1.0 / below
    fraction = inverse
    for step in range(1, 100_000):
        factor = -step * (step - shape)
        below += 2.0
        inverse = 1.0 / (factor * inverse + below)
        above = below + factor / above
        change = inverse * above
        fraction *= change
        if abs(change - 1.0) < 1e-15:
            break
    return fraction * scale


def fits_with(name: str, setting: Setting, device: torch.device, samples: int, seed: int) -> list[Fit]:
    """All comparisons of one kernel in one setting."""
    problem = Problem(setting, device, seed)
    generator = torch.Generator(device).manual_seed(seed)
    sampler = kernel_of(name, problem, generator, seed)
    return fits_of(problem, count_tokens(problem, sampler, samples, generator))


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    result: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return result


def run(device: torch.device, samples: int, seed: int, kernels: Sequence[str]) -> dict[str, Any]:
    """Every kernel in every setting, as the file holds it."""
    started, rows = time.perf_counter(), []
    for setting in settings_for(device, samples):
        share = samples if setting.vocabulary <= 256 else -(-samples // _LARGE_SHARE)
        for kernel in kernels:
            shown = {"kernel": kernel, "setting": setting.name, "temperature": setting.temperature}
            rows += [{**shown, **asdict(fit)} for fit in fits_with(kernel, setting, device, share, seed)]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    software = {"torch": torch.__version__, "triton": _triton_version() if "triton" in kernels else ""}
    passed = all(row["p_value"] > THRESHOLD for row in rows)
    seconds = time.perf_counter() - started
    return {"schema": SCHEMA, "device": name, **software, "samples": samples, "seed": seed, "threshold": THRESHOLD,
            "passed": passed, "seconds": round(seconds, 3), "tests": rows}  # fmt: skip


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


def table_text(answer: dict[str, Any]) -> str:
    """A line for each kernel and setting: its worst test."""
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for row in answer["tests"]:
        groups.setdefault((row["kernel"], row["setting"], row["temperature"]), []).append(row)
    lines = [f"{'kernel':8}{'setting':20}{'T':>5}{'tests':>7}{'least p':>10}{'TV of it':>10}  test"]
    for (kernel, setting, temperature), rows in groups.items():
        worst = min(rows, key=lambda row: row["p_value"])
        numbers = f"{temperature:5.1f}{len(rows):7}{worst['p_value']:10.2g}{worst['total_variation']:10.2g}"
        lines.append(f"{kernel:8}{setting:20}{numbers}  {worst['test']}")
    verdict = "all p-values above" if answer["passed"] else "a p-value is not above"
    return "\n".join([*lines, f"{verdict} {answer['threshold']:g}; {answer['device']}, {answer['seconds']:.1f} s"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.losslessness", description="Test verification's output.")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--samples", type=int, default=1_000_000, help="sequences of each small setting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernel", action="append", choices=KERNELS, help="repeatable; all that run here without")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    chosen = parser.parse_args(arguments)
    try:
        device = torch.device(chosen.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise BenchError("there is no CUDA device")
        missing = missing_for(device)
        if missing and "triton" in (chosen.kernel or []):
            raise BenchError(missing)
        kernels = chosen.kernel or [name for name in KERNELS if name == "torch" or not missing]
        answer = run(device, max(1, chosen.samples), chosen.seed, kernels)
        if chosen.out is not None:
            # An infinite statistic is no JSON number.
            text = json.dumps(answer, indent=1).replace(": Infinity", ": null")
            write_whole(chosen.out, text + "\n", f"cannot write {chosen.out}")
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table_text(answer))
    return 0 if answer["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
