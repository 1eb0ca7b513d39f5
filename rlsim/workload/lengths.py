"""Length distributions as functions of a standard normal score, capped and moved to a published mean."""

from __future__ import annotations

import csv
import json
import math
from array import array
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.errors import VALUE_CHARACTERS, InputError, shortened
from rlsim.files.lookup import delivered_lengths, length_file
from rlsim.files.reading import TRACE_BYTES, check_readable, read_text, shown_path, text_lines
from rlsim.files.yaml import lists_beside
from rlsim.schema import workload as section
from rlsim.units import FloatArray, IntArray
from rlsim.workload.lognormal import increasing_root, limited_lognormal_mean

Subject = Literal["prompt", "response", "observation", "time"]

_NAMES = lists_beside(__file__)
QUANTILE = "quantile"
PROMPT_IDS: list[str] = _NAMES["prompt_ids"]


class Scales(NamedTuple):
    """Factors on lengths of responses and on turns of trajectories, before either is cut at its cap."""

    response: float = 1.0
    turns: float = 1.0


UNSCALED = Scales()


class Place(NamedTuple):
    """What random numbers belong to: a step of a replication, and the number of a repeated rollout of it.

    Equal places give equal draws, whatever the configuration, so that two of them meet the same work.
    """

    seed: int
    step: int
    replication: int
    number: int = 0

    def generator(self, purpose: int) -> np.random.Generator:
        """A stream of its own for each purpose and for each further rollout of a step."""
        again = [self.number] if self.number else []
        # An array takes half as long as a list of the same words.
        return np.random.default_rng(np.array([self.seed, self.replication, self.step, purpose, *again], np.uint32))

    def normals(self, count: int, purpose: int) -> FloatArray:
        """``count`` standard normal scores."""
        return self.generator(purpose).standard_normal(count)


def read_lengths(path: str, column: str | None, subject: Subject) -> tuple[FloatArray, FloatArray]:
    """Inverse distribution function of the lengths in a file: (quantiles, tokens), both increasing from 0 to 1.

    path: JSONL or CSV; a bare file name is also looked for among the tables delivered with the scenarios.
    column: key or column with the token counts; guessed for the known formats, and where a CSV has a single column.
    Columns of a CSV without a header (its first line holds numbers only) are called 1, 2, ...
    A CSV with a column ``quantile`` is taken as the inverse distribution function itself; any other file as one
    observation a row, the i-th smallest of n standing for the quantiles around (i - 1/2) / n.

    Raises InputError naming the file and the line of anything that is not a non-negative number.
    """
    file = _find(path)
    text, where = read_text(file, TRACE_BYTES), shown_path(file)
    rows = rows_of(text, where)
    line, first = next(rows, (0, None))
    if first is None:
        raise InputError(f"{where}: no rows; at least one length is needed")
    name = column or guessed_column(first, where, subject)
    inverse = QUANTILE in first and name != QUANTILE
    # Numbers alone are stored: rows of served requests hold hundreds of hashes each.
    found = array("d")
    for number, row in chain([(line, first)], rows):
        found.append(number_in(row, name, where, number))
        if inverse:
            found.append(number_in(row, QUANTILE, where, number))  # in turn with the values: one array, no second pass
    tokens = np.array(found)
    if inverse:
        return _check_inverse(tokens[1::2], tokens[::2], where)
    tokens.sort()
    if tokens[-1] <= 0:
        raise InputError(f"{where}: every length in '{name}' is 0")
    # Hazen's plotting positions: each of n observations stands for the middle of its n-th.
    quantiles = (np.arange(tokens.size) + 0.5) / tokens.size
    return np.concatenate(([0.0], quantiles, [1.0])), np.concatenate((tokens[:1], tokens, tokens[-1:]))


def rows_of(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row) of a text of JSON objects, one a line, or of a CSV; its comments begin with #.

    Raises InputError naming ``where`` and the line of what cannot be read.
    """
    return _json_objects(text, where) if text.lstrip().startswith("{") else _csv_rows(text, where)


def ignored_ids(path: str) -> str:
    """Columns of a length file that tell which rows belong to one prompt, joined by commas; nothing uses them."""
    with _find(path).open(encoding="utf-8-sig", errors="replace") as file:
        head = next((line for line in file if line.strip() and line[0] != "#"), "")
    try:
        names = list(json.loads(head)) if head.lstrip().startswith("{") else next(csv.reader([head]))
    except (ValueError, RecursionError, csv.Error):
        return ""
    return ", ".join(name for name in (str(item).strip() for item in names) if name in PROMPT_IDS)


def _find(path: str) -> Path:
    found = length_file(path)
    if found is None:
        known = ", ".join(sorted(p.name for p in delivered_lengths().glob("*.csv"))) or "none"
        raise InputError(f"{shown_path(Path(path))}: length file not found (delivered tables: {known})")
    check_readable(found)
    return found


def _json_objects(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in text_lines(text, where):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}, line {number}: not JSON ({shortened(str(error))})") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}, line {number}: a JSON object is needed, got {type(row).__name__}")
        yield number, row


def _csv_rows(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    header: list[str] | None = None
    for number, line in text_lines(text, where):
        if not line.strip() or line[0] == "#":
            continue
        try:
            cells = next(csv.reader([line]))
        except csv.Error as error:
            raise InputError(f"{where}, line {number}: not CSV ({shortened(str(error))})") from error
        if header is None:
            header = [cell.strip() for cell in cells]
            if not all(math.isfinite(_number(cell)) for cell in header):
                continue
            header = [str(position) for position in range(1, len(header) + 1)]
        if len(cells) != len(header):
            raise InputError(f"{where}, line {number}: {len(cells)} cells where the header has {len(header)}")
        yield number, dict(zip(header, cells, strict=True))


def _names(row: Mapping[str, Any]) -> str:
    return shortened(", ".join(str(name) for name in row), 2 * VALUE_CHARACTERS)


def known_column(row: Mapping[str, Any], subject: Subject) -> str | None:
    """The column of ``row`` that the known formats keep ``subject`` in; None where it has none."""
    return next((name for name in _NAMES["columns"][subject] if name in row), None)


def guessed_column(row: Mapping[str, Any], where: str, subject: Subject) -> str:
    """The column of a known format, or the only one. Raises InputError that lists the columns."""
    known, values = known_column(row, subject), [name for name in row if name != QUANTILE]
    if known is not None or len(values) == 1:
        return known or values[0]
    what = "seconds" if subject == "time" else f"{subject} tokens"
    raise InputError(
        f"{where}: which column holds the {what}? Set {_NAMES['keys'][subject]}.column to one of: " + _names(row)
    )


def number_in(row: Mapping[str, Any], name: str, where: str, line: int) -> float:
    """The number of at least 0 in column ``name``. Raises InputError naming ``where`` and the line."""
    if name not in row:
        raise InputError(f"{where}, line {line}: no column '{shortened(name)}'; there is {_names(row)}")
    value, number = row[name], _number(row[name])
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{where}, line {line}: '{name}' must be a number of at least 0; got {shortened(repr(value))}")
    return number


def _number(value: Any) -> float:
    """The number that a cell holds; NaN where it holds none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)  # float(True) is 1.0
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _check_inverse(quantiles: FloatArray, tokens: FloatArray, where: str) -> tuple[FloatArray, FloatArray]:
    if quantiles.size < 2 or quantiles[0] != 0 or quantiles[-1] != 1 or np.any(np.diff(quantiles) <= 0):
        raise InputError(f"{where}: column '{QUANTILE}' must increase from 0 to 1")
    if np.any(np.diff(tokens) < 0) or tokens[-1] <= 0:
        raise InputError(f"{where}: tokens must not decrease over '{QUANTILE}' and must end above 0")
    return quantiles, tokens


_POINTS = 4096
MOST_SIGMA = 3.0
"""Widest spread of lengths, as of log_sigma (schema/workload.py)."""


class LengthDistribution(Struct, frozen=True, eq=False):
    """Uncapped length as a non-decreasing function of a standard normal score.

    Either exp(location + sigma z), or scale times an inverse distribution function at Phi(z).
    """

    location: float = 0.0
    sigma: float = 0.0
    scale: float = 1.0
    quantiles: FloatArray | None = None
    tokens: FloatArray | None = None

    def at(self, scores: FloatArray) -> FloatArray:
        """Lengths in tokens at normal scores, shape of ``scores``."""
        if self.quantiles is None or self.tokens is None:
            return np.exp(self.location + self.sigma * scores)
        if self.tokens[0] == self.tokens[-1]:  # environments of 0 s, as imports have: an eighth of a rollout's draw
            return np.full(scores.shape, self.scale * self.tokens[0])
        return np.interp(np.interp(scores, *_normal_table()), self.quantiles, self.scale * self.tokens)

    def mean_below(self, cap: float) -> float:
        """Mean of the lengths in tokens when each is cut at ``cap``."""
        if self.quantiles is None or self.tokens is None:
            return limited_lognormal_mean(self.location, self.sigma, cap)
        return float(np.minimum(self.scale * _equally_likely(self.quantiles, self.tokens), cap).mean())

    def scaled(self, factor: float) -> LengthDistribution:
        """The distribution of ``factor`` times the lengths; nothing is solved for again."""
        return replace(self, location=self.location + math.log(factor), scale=factor * self.scale)


def whole_tokens(lengths: FloatArray, cap: IntArray | int) -> IntArray:
    """Lengths rounded to whole tokens, at least 1 and at most ``cap``."""
    return np.clip(np.rint(lengths), 1, cap).astype(np.int64)


def response_caps(workload: section.Workload, before: IntArray) -> IntArray:
    """Most tokens of the responses, or turns, that follow so many tokens; at least 1."""
    return np.clip(workload.max_sequence_tokens - before, 1, workload.max_response_tokens)


def solve_distribution(length: section.Length, caps: FloatArray, subject: Subject) -> LengthDistribution:
    """Distribution whose mean after truncation is ``length.mean_tokens``, where that is given.

    caps: representative caps in tokens (equal shares of the samples each). Raises InputError where no distribution has
    that mean because it reaches the mean cap.
    """
    if isinstance(length, section.ConstantLength):
        return LengthDistribution(location=math.log(length.tokens))
    if isinstance(length, section.LognormalLength):
        return _lognormal_of(length, caps, subject)
    if isinstance(length, section.QuantileLength):
        quantiles, tokens = np.asarray(length.quantiles), np.asarray(length.tokens)
    else:
        quantiles, tokens = read_lengths(length.path, length.column, subject)
    scale = 1.0
    if length.mean_tokens is not None:
        _check_cap(length.mean_tokens, caps, subject)
        scale = _scale_for(length.mean_tokens, quantiles, tokens, caps, subject)
    return LengthDistribution(scale=scale, quantiles=quantiles, tokens=tokens)


def solve_turns(turns: section.Turns, most: int) -> LengthDistribution:
    """Distribution of the turns of a trajectory. most: where it is cut, before the mean that the section gives."""
    if isinstance(turns, section.ConstantTurns):
        return LengthDistribution(location=math.log(turns.turns))
    if isinstance(turns, section.LognormalTurns):
        # A mean of 1 is all that fits, and no location reaches it: trajectories have one turn.
        if most == 1:
            return LengthDistribution()
        return _lognormal(turns.mean_turns, turns.log_sigma, np.array([float(most)]))
    return LengthDistribution(quantiles=np.asarray(turns.quantiles), tokens=np.asarray(turns.turns))


def solve_time(time: section.Time) -> LengthDistribution:
    """Distribution of a time in seconds, in place of tokens."""
    if isinstance(time, section.ConstantTime):
        return LengthDistribution(quantiles=np.array([0.0, 1.0]), tokens=np.full(2, time.seconds))
    if isinstance(time, section.LognormalTime):
        # The mean of a log-normal is exp(location + sigma^2 / 2); times have no cap to solve for.
        return LengthDistribution(location=math.log(time.mean_s) - time.log_sigma**2 / 2, sigma=time.log_sigma)
    if isinstance(time, section.QuantileTime):
        return LengthDistribution(quantiles=np.asarray(time.quantiles), tokens=np.asarray(time.seconds))
    quantiles, seconds = read_lengths(time.path, time.column, "time")
    return LengthDistribution(quantiles=quantiles, tokens=seconds)


def _lognormal(mean: float, sigma: float, caps: FloatArray) -> LengthDistribution:
    """Lognormal lengths whose mean is that one after they are cut at the caps."""

    def gap(location: float) -> float:
        return sum(limited_lognormal_mean(location, sigma, cap) for cap in caps) / caps.size - mean

    return LengthDistribution(location=increasing_root(gap), sigma=sigma)


def _lognormal_of(length: section.LognormalLength, caps: FloatArray, subject: Subject) -> LengthDistribution:
    """Lognormal lengths with the mean and, where it is given, the share at the cap of a section."""
    mean, reach = length.mean_tokens, float(caps.mean())
    if length.cut_share is None:
        if mean >= reach:  # of the lengths before they are cut: no other mean is as large
            return LengthDistribution(location=math.log(mean) - length.log_sigma**2 / 2, sigma=length.log_sigma)
        return _lognormal(mean, length.log_sigma, caps)
    _check_mean(mean, reach, subject, "the cap, as the mean beside cut_share is that after the cut")
    score = float(np.interp(1.0 - length.cut_share, _normal_table()[1], _normal_table()[0]))

    def mean_of(sigma: float) -> float:  # the wider, the less the lengths below the cap hold
        return limited_lognormal_mean(math.log(reach) - sigma * score, sigma, reach)

    # Told before the root is looked for: wider ones overflow.
    if mean <= (least := mean_of(MOST_SIGMA)):
        share = f"as a share of {length.cut_share:g} at the cap of {reach:,.0f} holds so much"
        raise InputError(f"{_NAMES['keys'][subject]}.mean_tokens must be above {least:,.0f}, {share}; got {mean:g}")
    sigma = math.exp(increasing_root(lambda log_sigma: mean - mean_of(math.exp(log_sigma))))
    return LengthDistribution(location=math.log(reach) - sigma * score, sigma=sigma)


def _check_cap(mean: float, caps: FloatArray, subject: Subject) -> None:
    beside = " or max_response_tokens" if subject == "response" else ""
    _check_mean(mean, float(caps.mean()), subject, f"the cap that workload.max_sequence_tokens{beside} leaves it")


def _check_mean(mean: float, reach: float, subject: Subject, why: str) -> None:
    if mean >= reach:
        raise InputError(f"{_NAMES['keys'][subject]}.mean_tokens must be below {reach:g}, {why}; got {mean:g}")


def _scale_for(mean: float, quantiles: FloatArray, tokens: FloatArray, caps: FloatArray, subject: Subject) -> float:
    # Lengths of 0 stay 0 however they are scaled: only the others can make up the mean.
    points = _equally_likely(quantiles, tokens)
    _check_mean(mean, float(caps.mean()) * float(np.mean(points > 0)), subject, "as the other lengths are 0")

    def gap(log_scale: float) -> float:
        return float(np.mean([np.minimum(math.exp(log_scale) * points, cap).mean() for cap in caps])) - mean

    return math.exp(increasing_root(gap))


def _equally_likely(quantiles: FloatArray, tokens: FloatArray) -> FloatArray:
    return np.interp((np.arange(_POINTS) + 0.5) / _POINTS, quantiles, tokens)


@cache
def _normal_table() -> tuple[FloatArray, FloatArray]:
    """Phi on a grid of 1/256 over -9..9; linear interpolation is good to 5e-7."""
    grid = np.arange(-9 * 256, 9 * 256 + 1) / 256
    return grid, np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in grid.tolist()])
