"""What a trace says of a workload: distributions of its lengths beside themselves, the cap, groups, and a fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlsim.files.records import dataclass
from rlsim.readers.traces.fit import (
    CLOSE,
    TOLD,
    Correlation,
    LognormalFit,
    cap_of,
    fit_lognormal,
    group_correlation,
    lognormal_misses,
    quantile_table,
)
from rlsim.readers.traces.requests import Requests
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.results.record import rounded
from rlsim.units import BoolArray, FloatArray

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
    def longest_sequence(self) -> float | None:
        """Tokens that prompt and response need at most; None without prompts."""
        if self.prompt is None or self.requests.prompt is None:
            return None
        return float((self.requests.prompt + self.requests.response).max())

    def picture(self) -> Figure:
        """Cumulative distributions of the lengths in tokens."""
        from rlsim.report.figures.measured import MeasuredLengths, lengths_figure

        shown = [
            MeasuredLengths(
                one.name,
                one.tokens,
                one.fit.cdf,
                None if one.lognormal or one.constant else one.quantiles,
                None if self.cap_of_sequence or one is not self.response else self.cap,
            )
            for one in (self.response, self.prompt)
            if one is not None
        ]
        cut = f", {self.truncated:.1%} cut at {self.cap:,.0f}" if self.cap is not None else ""
        return lengths_figure(f"{self.requests.response.size:,} samples{cut}", shown)

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
        """The fragment as ``--set`` of those keys that are short enough."""
        out = []
        for line in self.fragment().splitlines()[2:]:
            key, _, value = line.strip().partition(": ")
            word = f"workload.{key}={value.partition('  #')[0]}"
            if len(word) <= SHORT:
                out.append(f"--set '{word}'" if " " in word else f"--set {word}")
        return out

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
        for one in (self.response, self.prompt):
            if one is not None and not (one.constant or one.lognormal or one.table_only):
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
                for one in (self.response, self.prompt)
                if one is not None
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
        both = [one for one in (self.response, self.prompt) if one is not None]
        heads = ("tokens", "mean", *(f"p{100 * level:g}" for level in TOLD), "longest")
        rows = []
        for one in both:
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
        pasted = [f"or: {' '.join(self.settings())}"] if self.settings() else []
        return "\n".join([*lines, "", self.fragment(), *pasted])


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
