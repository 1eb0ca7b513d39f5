"""What a trace says of a workload: distributions of its lengths beside themselves (quantiles, a censored lognormal),
the cap, how alike samples of a prompt are, and a fragment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from rlsim.readers.traces.requests import Requests
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.results.record import rounded
from rlsim.units import BoolArray, FloatArray, IntArray
from rlsim.workload.lognormal import limited_lognormal_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = 120
"""Characters of a --set that are worth typing."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """Lengths of one kind (response or prompt) with what describes them.

    fit: the lognormal; misses: its quantiles over the measured ones - 1, by name. quantiles: levels and lengths.
    """

    name: str
    tokens: FloatArray
    fit: LognormalFit
    misses: dict[str, float]
    quantiles: tuple[FloatArray, FloatArray]
    table_only: bool = False

    @classmethod
    def of(cls, name: str, tokens: FloatArray, censored: BoolArray, table_only: bool = False) -> Lengths:
        """table_only: a cap of responses alone, which a lognormal under a cap of the sequence does not have."""
        fit = fit_lognormal(tokens, censored)
        return cls(name, tokens, fit, lognormal_misses(fit, tokens), quantile_table(tokens), table_only)

    @property
    def lognormal(self) -> bool:
        """Whether the lognormal comes near enough to stand for the lengths."""
        return not self.table_only and max(abs(miss) for miss in self.misses.values()) <= CLOSE

    @property
    def constant(self) -> bool:
        """Whether all are the same."""
        return bool(self.tokens.min() == self.tokens.max())

    def section(self) -> str:
        """The distribution as a scenario writes it: constant, lognormal where that comes near, else quantiles."""
        if self.constant:
            return f"{{kind: constant, tokens: {max(1, round(float(self.tokens[0])))}}}"
        if self.lognormal:
            mean = float(self.tokens.mean())
            return f"{{kind: lognormal, mean_tokens: {mean:.6g}, log_sigma: {self.fit.log_sigma:.4g}}}"
        levels, tokens = (", ".join(f"{value:.6g}" for value in part) for part in self.quantiles)
        return f"{{kind: quantiles, quantiles: [{levels}], tokens: [{tokens}]}}"

    def told(self) -> dict[str, float]:
        """Mean and quantiles as measured."""
        found = np.quantile(self.tokens, TOLD, method="hazen").tolist()
        named = {f"p{100 * level:g}": value for level, value in zip(TOLD, found, strict=True)}
        return {"mean": float(self.tokens.mean()), **named, "longest": float(self.tokens.max())}


@dataclass(frozen=True, eq=False)
class TraceAnswer:
    """A trace as a workload.

    cap: tokens at which samples were cut, None where nothing shows; of prompt and response together where
    ``cap_of_sequence``. truncated: share of samples there.
    """

    requests: Requests
    response: Lengths
    prompt: Lengths | None
    cap: float | None
    cap_of_sequence: bool
    truncated: float
    correlation: Correlation | None

    @property
    def both(self) -> list[Lengths]:
        """Lengths of responses, and of prompts where the trace has them."""
        return [self.response, *([] if self.prompt is None else [self.prompt])]

    @property
    def longest_sequence(self) -> float | None:
        """Tokens that prompt and response need at most; None without prompts."""
        if self.requests.prompt is None:
            return None
        return float((self.requests.prompt + self.requests.response).max())

    def picture(self) -> Figure:
        """Cumulative distributions of the lengths in tokens."""
        from rlsim.report.figures.bars import lengths_figure

        cut = f", {self.truncated:.1%} cut at {self.cap:,.0f}" if self.cap is not None else ""
        title = f"{self.requests.response.size:,} samples{cut}"
        return lengths_figure(title, self.both, None if self.cap_of_sequence else self.cap)

    def fragment(self) -> str:
        """The part of a scenario file that the trace tells, with its origin."""
        lines = [
            f"# {self.requests.where}: {self.requests.response.size:,} samples ({self.requests.form})",
            "workload:",
        ]
        if self.prompt is not None:
            lines.append(f"  prompt_tokens: {self.prompt.section()}")
        lines.append(f"  response_tokens: {self.response.section()}")
        if self.longest_sequence is not None:
            what = (
                f"the cap, {self.truncated:.2%} cut" if self.cap_of_sequence else "the longest prompt with its response"
            )
            lines.append(f"  max_sequence_tokens: {max(2, round(self.longest_sequence))}  # {what}")
        if self.correlation is not None:
            lines.append(f"  group_correlation: {self.correlation.value:.3f}")
        return "\n".join(lines) + "\n"

    def settings(self) -> list[str]:
        """The fragment as ``--set`` of each of its keys; none where one of them is too long to type."""
        words = []
        for line in self.fragment().splitlines()[2:]:
            key, _, value = line.strip().partition(": ")
            words.append(f"workload.{key}={value.partition('  #')[0]}")
        if any(len(word) > SHORT for word in words):
            return []
        return [f"--set '{word}'" if " " in word else f"--set {word}" for word in words]

    def remarks(self) -> tuple[str, ...]:
        """What a reader must know."""
        out = list(self.requests.remarks)
        if self.cap is not None:
            what = "prompt and response" if self.cap_of_sequence else "the response"
            out.append(
                f"{self.truncated:.2%} of the samples end at {self.cap:,.0f} tokens of {what}: taken as cut there"
            )
        else:
            out.append("no sample shows that it was cut: too few have exactly the longest length")
        for one in self.both:
            if not (one.constant or one.lognormal or one.table_only):
                far, miss = max(one.misses.items(), key=lambda entry: abs(entry[1]))
                out.append(f"{one.name}: no lognormal comes near ({far} off by {miss:+.0%}), quantiles stand for it")
        if self.correlation is None:
            out.append("nothing tells which samples share a prompt: workload.group_correlation stays assumed")
        return tuple(out)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.correlation
        return {
            "schema": "rlsim.trace/1",
            "trace": self.requests.where,
            "format": self.requests.form,
            "samples": int(self.requests.response.size),
            "lengths": {
                one.name: {
                    "measured": {key: rounded(value, 6) for key, value in one.told().items()},
                    "lognormal": {"log_sigma": rounded(one.fit.log_sigma, 6), "mean_tokens": rounded(one.fit.mean, 6)},
                    "lognormal_misses": {key: rounded(value, 6) for key, value in one.misses.items()},
                }
                for one in self.both
            },
            "cap_tokens": self.cap,
            "truncated_share": rounded(self.truncated, 6),
            "group_correlation": None if found is None else {
                "mean": rounded(found.value, 6), "low": rounded(found.low, 6), "high": rounded(found.high, 6),
                "prompts": found.prompts,
            },
            "remarks": list(self.remarks()),
            "fragment": self.fragment(),
        }  # fmt: skip

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """For a terminal."""
        heads = ("tokens", "mean", *(f"p{100 * level:g}" for level in TOLD), "longest")
        rows = []
        for one in self.both:
            rows.append((one.name, *(f"{value:,.0f}" for value in one.told().values())))
            fitted = (one.fit.mean, *one.fit.quantile(np.array(TOLD)).tolist(), one.fit.cap)
            rows.append((f"  lognormal, sigma {one.fit.log_sigma:.2f}", *(f"{value:,.0f}" for value in fitted)))
        title = f"{self.requests.where}: {self.requests.response.size:,} samples ({self.requests.form})"
        lines = [*style.wrapped(title), "", *table(heads, rows, style, "<>"), ""]
        if (found := self.correlation) is not None:
            interval = f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
            lines += style.wrapped(f"within a prompt, {found.prompts:,} of them: correlation {interval}")
        for remark in self.remarks():
            lines += style.wrapped(remark, "- ")
        words = " ".join(self.settings())
        way = f"or: {words}" if words else "Too long for --set: paste the fragment into a scenario's file."
        return "\n".join([*lines, "", self.fragment(), way])


def workload_of(requests: Requests) -> TraceAnswer:
    """What ``requests`` say of a workload."""
    response, prompt = requests.response, requests.prompt
    whole = response if prompt is None else response + prompt
    cap = cap_of(whole)
    of_sequence = cap is not None and prompt is not None
    if cap is None and prompt is not None:
        cap = cap_of(response)
    censored = np.zeros(response.size, dtype=np.bool_) if cap is None else (whole if of_sequence else response) == cap
    return TraceAnswer(
        requests,
        Lengths.of("response", response, censored, table_only=cap is not None and not of_sequence),
        None if prompt is None else Lengths.of("prompt", prompt, np.zeros(prompt.size, dtype=np.bool_)),
        cap,
        of_sequence,
        float(censored.mean()),
        None if requests.groups is None else group_correlation(response, requests.groups),
    )


TOLD = (0.5, 0.9, 0.99)
"""Quantiles that are compared."""
LEVELS = (
    *(0.0, 0.001, 0.005, 0.01, 0.02, 0.05, *(round(0.05 * n, 2) for n in range(2, 19)), 0.925, 0.95, 0.96, 0.97),
    *(0.98, 0.985, 0.99, 0.9925, 0.995, 0.9975, 0.999, 1.0),
)
"""Of the table of quantiles."""
MOST_LEVELS, TABLE_ERROR = 80, 0.002
"""Levels are added where lengths are unevenly spread between two, up to so many, until the mean is kept that well."""
CAP_SAMPLES, CAP_NEAR, CAP_EXCESS = 3, 0.98, 5
"""Samples of exactly the longest length make it a cap where there are so many, and so many times as many as each length
between this share of the longest and the longest has in the mean."""
LEAST_SIGMA, MOST_SIGMA = 1e-3, 3.0
"""Of log_sigma; a scenario takes no larger one."""
CLOSE = 0.05
"""A lognormal stands for the lengths where mean, median, 90th and 99th percentile miss by no more than this share."""
BOOTSTRAPS, SEED = 400, 20261122


@dataclass(frozen=True)
class LognormalFit:
    """A lognormal truncated at a cap with a point mass there, and what it gives. mean: after truncation, in tokens."""

    location: float
    log_sigma: float
    cap: float
    mean: float

    def quantile(self, levels: FloatArray) -> FloatArray:
        """Lengths at ``levels``."""
        # Far quantiles of a wide fit overflow to infinity, which the cap takes back.
        with np.errstate(over="ignore"):
            return np.asarray(np.minimum(np.exp(self.location + self.log_sigma * ndtri(levels)), self.cap))

    def cdf(self, tokens: FloatArray) -> FloatArray:
        """Share of samples up to each length."""
        scores = (np.log(np.maximum(tokens, 1e-9)) - self.location) / max(self.log_sigma, 1e-9)
        return np.asarray(np.where(tokens >= self.cap, 1.0, ndtr(scores)))


@dataclass(frozen=True)
class Correlation:
    """Share of the variance common to the samples of a prompt, with its 90 % interval by resampling prompts."""

    value: float
    low: float
    high: float
    prompts: int


def cap_of(tokens: FloatArray) -> float | None:
    """The longest length where so many samples have it that it must be a cap; None where it is one of a tail."""
    longest = float(tokens.max())
    count = int(np.count_nonzero(tokens == longest))
    width = (1 - CAP_NEAR) * longest + 1
    near = np.count_nonzero((tokens >= longest - width) & (tokens < longest)) / width
    return longest if tokens.min() < longest and count >= max(CAP_SAMPLES, CAP_EXCESS * near) else None


def quantile_table(tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(levels, lengths): an inverse distribution function of at most MOST_LEVELS points.

    Between two of them lengths are evenly spread, as schema.lengths.QuantileLength reads it.
    """
    ordered = np.sort(tokens)
    upto = np.concatenate([[0.0], np.cumsum(ordered)]) / ordered.size
    exact = np.linspace(0.0, 1.0, ordered.size + 1)
    levels = np.array(LEVELS)
    while True:
        found = np.quantile(ordered, levels, method="hazen")
        spread = np.diff(levels) * (found[1:] + found[:-1]) / 2
        errors = np.abs(spread - np.diff(np.interp(levels, exact, upto)))
        if errors.sum() <= TABLE_ERROR * upto[-1] or levels.size >= min(MOST_LEVELS, len(LEVELS) + ordered.size):
            break
        worst = int(errors.argmax())
        levels = np.insert(levels, worst + 1, round((levels[worst] + levels[worst + 1]) / 2, 6))
    # Points within a run of equal lengths say nothing.
    keep = np.ones(levels.size, dtype=np.bool_)
    keep[1:-1] = (found[1:-1] != found[:-2]) | (found[1:-1] != found[2:])
    return levels[keep], found[keep]


def fit_lognormal(tokens: FloatArray, censored: BoolArray) -> LognormalFit:
    """Maximum likelihood of a lognormal whose ``censored`` samples are known to be at least as long as they are.

    Right-censored normal likelihood of the logarithms (Cohen 1950, doi:10.1214/aoms/1177729751). Lengths of 0 count
    as 1 token. Its cap is the mean length of the censored samples, else the longest.
    """
    logs = np.log(np.maximum(tokens, 1.0))
    free, limits = logs[~censored], logs[censored]
    found = np.array([float(logs.mean()), math.log(max(float(logs.std()), LEAST_SIGMA))])
    if free.size and limits.size:
        from scipy.optimize import minimize  # a third of the time of reading a trace that was not cut

        # Of those that were not cut mean and variance say all: no step of the search sums over them again.
        count, centre, spread = free.size, float(free.mean()), float(free.var())

        def loss(given: FloatArray) -> float:
            mu, sigma = float(given[0]), math.exp(float(given[1]))
            inside = count * (math.log(sigma) + (spread + (centre - mu) ** 2) / (2 * sigma * sigma))
            return float(inside - log_ndtr((mu - limits) / sigma).sum()) / logs.size

        bounds = [(-1.0, 25.0), (math.log(LEAST_SIGMA), math.log(MOST_SIGMA))]
        found = np.asarray(minimize(loss, np.clip(found, *np.array(bounds).T), bounds=bounds).x)
    location, sigma = float(found[0]), min(MOST_SIGMA, math.exp(float(found[1])))
    cap = float(tokens[censored].mean()) if limits.size else float(tokens.max())
    return LognormalFit(location, sigma, cap, limited_lognormal_mean(location, sigma, cap))


def lognormal_misses(fit: LognormalFit, tokens: FloatArray) -> dict[str, float]:
    """Fitted over measured - 1 of the mean and of TOLD quantiles."""
    levels = np.array(TOLD)
    measured = np.maximum(np.quantile(tokens, levels, method="hazen"), 1e-9)
    misses = fit.quantile(levels) / measured - 1
    names = [f"p{100 * level:g}" for level in TOLD]
    return {"mean": fit.mean / float(tokens.mean()) - 1, **dict(zip(names, misses.tolist(), strict=True))}


def group_correlation(tokens: FloatArray, groups: IntArray) -> Correlation | None:
    """Correlation of the lengths of one prompt's samples on the scale on which rlsim draws them; None without pairs.

    Lengths become normal scores by their ranks (ties share theirs), as workload.group_correlation joins samples. The
    share is that of a one-way analysis of variance for groups of any size (Donner and Koval 1980,
    doi:10.2307/2530491), kept within 0 and 1.
    """
    _, place, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    scores = ndtri(middle / tokens.size)[place]
    _, numbers, members = np.unique(groups, return_inverse=True, return_counts=True)
    sizes = members.astype(np.float64)
    if np.count_nonzero(sizes > 1) < 2 or scores.std() == 0:
        return None
    sums = np.asarray(np.bincount(numbers, scores), dtype=np.float64)
    squares = np.asarray(np.bincount(numbers, scores**2), dtype=np.float64)
    value = _share(sizes[None, :], sums[None, :], squares[None, :])[0]
    rng = np.random.default_rng(SEED)
    drawn = np.concatenate(
        [_share(*(part[picked][None, :] for part in (sizes, sums, squares)))
         for picked in (rng.integers(0, sizes.size, sizes.size) for _ in range(BOOTSTRAPS))]
    )  # fmt: skip
    low, high = np.quantile(drawn, (0.05, 0.95))
    return Correlation(float(value), float(min(low, value)), float(max(high, value)), int(sizes.size))


def _share(sizes: FloatArray, sums: FloatArray, squares: FloatArray) -> FloatArray:
    """Intraclass correlation of each row of groups, given their sizes, sums and sums of squares."""
    groups, samples = sizes.shape[1], sizes.sum(axis=1)
    between = ((sums**2 / sizes).sum(axis=1) - sums.sum(axis=1) ** 2 / samples) / max(groups - 1, 1)
    within = (squares - sums**2 / sizes).sum(axis=1) / np.maximum(samples - groups, 1)
    typical = (samples - (sizes**2).sum(axis=1) / samples) / max(groups - 1, 1)
    whole = between + (typical - 1) * within
    # Without any variance both are 0, and the share is too.
    return np.asarray(np.clip((between - within) / np.maximum(whole, 1e-12), 0.0, 1.0), dtype=np.float64)
