"""Files of requests, which format they are in, and the lengths that they hold; and acceptance by position from what
vLLM tells of speculative decoding: its Prometheus counters, or lines of its log.

P_i, the share of verifications in which draft position i was accepted, is
``vllm:spec_decode_num_accepted_tokens_per_pos`` over ``vllm:spec_decode_num_drafts``; the acceptance length 1 + sum of
P_i counts the bonus token (vLLM, ``vllm/v1/spec_decode/metrics.py``).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import TRACE_BYTES, read_bytes, read_text, shown_path, text_lines
from rlsim.readers.traces import Format, requests
from rlsim.readers.traces.agents import AgentAnswer, agents_of
from rlsim.readers.traces.dynamo import is_dynamo, served_trajectories
from rlsim.readers.traces.sessions import sessions_of
from rlsim.readers.traces.trajectories import Trajectory, is_trajectory, trajectories_of
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.workload.lengths import QUANTILE, number_in, rows_of

MOST_FILES = 1000
"""Files of a folder of rollouts that are read; they may hold TRACE_BYTES together."""


@dataclass(frozen=True)
class Reading:
    """How a trace is read. column, prompt_column, group_column: names where they are not guessed; group_size: samples
    in a row that share a prompt; characters_per_token: of rollouts that hold text alone."""

    form: Format = Format.AUTO
    column: str | None = None
    prompt_column: str | None = None
    group_column: str | None = None
    group_size: int | None = None
    characters_per_token: float = 4.0


def text_of(path: Path) -> tuple[str, str]:
    """Text of a trace and its name for messages; of a folder, that of its JSONL files in the order of their names.

    Raises InputError where there is none, or more than is read.
    """
    if not path.is_dir():
        return read_text(path, TRACE_BYTES), shown_path(path)
    files = files_of(path)
    if not files:
        raise InputError(f"{shown_path(path)}: the folder holds no .jsonl files (rollouts of verl or NeMo-RL)")
    if len(files) > MOST_FILES:
        raise InputError(f"{shown_path(path)}: holds {len(files):,} .jsonl files; at most {MOST_FILES:,} are read")
    texts, left = list[str](), TRACE_BYTES
    for file in files:
        # A file may end without a line break, and the next one begins on a line of its own either way.
        texts.append(read_text(file, left).rstrip("\n"))
        left -= len(texts[-1])
        if left <= 0:
            raise InputError(
                f"{shown_path(path)}: holds more than {TRACE_BYTES / 2**20:,.0f} MiB, the most that is read"
            )
    return "\n".join(texts), shown_path(path)


def files_of(folder: Path) -> list[Path]:
    """The JSONL files of a folder in the order of their names; of prime-rl's rollouts those that it trains on."""
    found = sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")], key=_by_number)
    return found or sorted(folder.glob("step_*/train/effective/traces.jsonl"), key=_by_step)


def _by_step(path: Path) -> tuple[int, str]:
    """Number and name of the folder of a step, or of a file named after one."""
    return _by_number(next((part for part in path.parents if part.name.startswith("step_")), path))


def _by_number(path: Path) -> tuple[int, str]:
    # By numbers, so that 10.jsonl follows 9.jsonl; isdigit alone also takes superscripts, of which int makes nothing.
    digits = "".join(letter for letter in path.stem if letter.isascii() and letter.isdigit())[:12]
    return int(digits or 0), path.name


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet files do. Raises InputError where it cannot be read."""
    return path.is_file() and read_bytes(path, TRACE_BYTES)[: len(requests.MAGIC)] == requests.MAGIC


def format_of(text: str, where: str) -> Format:
    """The format of a text trace, by its first row. Raises InputError where nothing tells it."""
    if PREFIX in text or LOGGED in text:
        return Format.VLLM_METRICS
    first = next(rows_of(text, where), None)
    if first is None:
        raise InputError(f"{where}: no rows; at least one length is needed")
    row = first[1]
    if is_trajectory(row) or is_dynamo(row):
        return Format.AGENTS
    if not text.lstrip().startswith("{"):
        return Format.AZURE if "ContextTokens" in row and "GeneratedTokens" in row else Format.CSV
    if "output_length" in row and (requests.TOKEN_BLOCKS in row or "timestamp" in row):
        return Format.MOONCAKE
    if isinstance(row.get("output"), str):
        return Format.VERL
    return Format.NEMO_RL if "input_lengths" in row else Format.JSONL


def read_requests(text: str, where: str, form: Format, reading: Reading) -> requests.Requests:
    """Lengths of a text trace in ``form``. Raises InputError naming the line of what cannot be used."""
    rows, remarks = rows_of(text, where), list[str]()
    if form is Format.VERL:
        samples = requests.verl_samples(rows, where, reading.characters_per_token, remarks)
    elif form is Format.NEMO_RL:
        samples = requests.nemo_rl_samples(rows, where, reading.group_size, remarks)
    else:
        samples = _columns(rows, where, reading, remarks)
    return requests.requests_of(samples, where, str(form), reading.group_size, remarks)


def _columns(rows: requests.Rows, where: str, reading: Reading, remarks: list[str]) -> Iterator[requests.Sample]:
    """Rows of a CSV or of JSON objects with a column for each length."""
    names: tuple[str, str | None, str | None] | None = None
    for line, row in rows:
        if names is None:
            if QUANTILE in row and reading.column is None:
                told = "{kind: trace, path: FILE}"
                raise InputError(f"{where}: is a table of quantiles already; state it: workload.response_tokens={told}")
            asked = (reading.column, reading.prompt_column, reading.group_column)
            names = requests.chosen_columns(row, asked, where)
            if requests.TOKEN_BLOCKS in row:
                told = "names shared prefixes of conversations, not samples of one prompt: no groups are made of it"
                remarks.append(f"{requests.TOKEN_BLOCKS} {told}")
        response, prompt, group = names
        key = None if group is None else _key(row, group, where, line)
        prompt_tokens = None if prompt is None else number_in(row, prompt, where, line)
        yield number_in(row, response, where, line), prompt_tokens, key


def _key(row: Mapping[str, Any], name: str, where: str, line: int) -> str | float:
    value = row.get(name)
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{where}, line {line}: '{shortened(name)}' must name a prompt by a text or a number")
    return value


def read_trace(path: Path, reading: Reading) -> requests.Requests | MeasuredAcceptance | AgentAnswer:
    """Lengths of the requests in ``path``, a file or a folder of rollouts; of trajectories their process; of
    engine metrics their acceptance.

    Raises InputError naming file and line of what cannot be used.
    """
    if reading.form is Format.PARQUET or (reading.form is Format.AUTO and is_parquet(path)):
        names = (reading.column, reading.prompt_column, reading.group_column)
        return requests.parquet_requests(read_bytes(path, TRACE_BYTES), shown_path(path), names, reading.group_size)
    text, where = text_of(path)
    form = format_of(text, where) if reading.form is Format.AUTO else reading.form
    if form is Format.VLLM_METRICS:
        return read_acceptance(text, where)
    if form is Format.AGENTS:
        notes, first = list[str](), next(rows_of(text, where), (0, {}))[1]
        if is_dynamo(first):
            return agents_of(served_trajectories(rows_of(text, where), where, notes), where, reading.group_size, notes)
        if requests.TOKEN_BLOCKS in first:
            return agents_of(sessions_of(rows_of(text, where), where, notes), where, reading.group_size, notes)
        found = [*trajectories_of(rows_of(text, where), where, reading.characters_per_token, notes)]
        if path.is_dir() and all(one.step is None for one in found):
            found = _numbered(path, reading)
        return agents_of(found, where, reading.group_size, notes)
    return read_requests(text, where, form, reading)


def _numbered(folder: Path, reading: Reading) -> list[Trajectory]:
    """The trajectories of a folder whose files are those of steps, with the numbers of these."""
    found = list[Trajectory]()
    for file in files_of(folder):
        rows, where = rows_of(read_text(file, TRACE_BYTES), shown_path(file)), shown_path(file)
        each = trajectories_of(rows, where, reading.characters_per_token, [])
        found += [replace(one, step=_by_step(file)[0]) for one in each]
    return found


PREFIX = "vllm:spec_decode_"
LOGGED = "SpecDecoding metrics:"
MOST_POSITIONS = 32
"""speculation.draft_length may not be larger."""
_NUMBER = r"([0-9.eE+\-naifNIF]+)"
_SERIES = re.compile(
    PREFIX + r"(num_drafts|num_accepted_tokens_per_pos|num_draft_tokens)(?:_total)?(\{[^}]*\})?\s+(\S+)"
)
_POSITION = re.compile(r'position="(\d{1,4})"')
_LENGTH = re.compile(r"Mean acceptance length:\s*" + _NUMBER)
_DRAFTED = re.compile(r"Drafted:\s*(\d+)\s*tokens")
_RATES = re.compile(r"Per-position acceptance rate:\s*([0-9.eE+\-,\s]+)")
SERIES_CHARACTERS = 4096
"""Longest line that is looked into: a series with its labels."""


@dataclass(frozen=True)
class MeasuredAcceptance:
    """What verifications accepted. position_rates: P_1..P_k, cumulative; verifications: how many it was counted over.

    remarks: what a reader must know of the figures.
    """

    position_rates: tuple[float, ...]
    verifications: float
    where: str
    remarks: tuple[str, ...] = ()

    @property
    def draft_length(self) -> int:
        """k, drafted tokens per verification."""
        return len(self.position_rates)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per verification with the bonus token."""
        return 1.0 + sum(self.position_rates)

    @property
    def _rates(self) -> str:
        return ", ".join(f"{rate:.4g}" for rate in self.position_rates)

    def fragment(self) -> str:
        """The part of a scenario file that the counters tell; the method (eagle3, mtp, ...) they do not."""
        origin = f"{self.verifications:,.0f} verifications, acceptance length {self.acceptance_length:.3f}"
        return (
            f"# {self.where}: {origin}\n"
            f"speculation:\n  draft_length: {self.draft_length}\n  position_acceptance: [{self._rates}]\n"
        )

    def settings(self) -> list[str]:
        """The fragment as ``--set``; whatever else the scenario says of acceptance falls."""
        return [
            f"--set speculation.draft_length={self.draft_length}",
            f"--set 'speculation.position_acceptance=[{self._rates}]'",
            "--set speculation.acceptance_length=null",
            "--set speculation.first_acceptance=null",
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "schema": "rlsim.acceptance/1",
            "trace": self.where,
            "verifications": self.verifications,
            "draft_length": self.draft_length,
            "position_acceptance": list(self.position_rates),
            "acceptance_length": self.acceptance_length,
            "remarks": list(self.remarks),
            "fragment": self.fragment(),
        }

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """For a terminal: cumulative and conditional acceptance of each position."""
        before = (1.0, *self.position_rates)
        rows = [
            (str(place), f"{rate:.3f}", f"{rate / last:.3f}" if last else "-")
            for place, (rate, last) in enumerate(zip(self.position_rates, before, strict=False), start=1)
        ]
        title = (
            f"{self.where}: acceptance length {self.acceptance_length:.3f} (with the bonus token) over "
            f"{self.verifications:,.0f} verifications of {self.draft_length} drafted tokens"
        )
        heads = ("position", "accepted", "given the one before")
        lines = [*style.wrapped(title), "", *table(heads, rows, style, ">"), ""]
        for remark in (*self.remarks, "the counters do not tell who drafted: state speculation.method"):
            lines += style.wrapped(remark, "- ")
        return "\n".join([*lines, "", self.fragment(), f"or: {' '.join(self.settings())}"])


def read_acceptance(text: str, where: str) -> MeasuredAcceptance:
    """Acceptance by position from counters, the last less the first where a series appears again, or from log lines.

    Several engines add up. Raises InputError where neither is there, or the counts make no sense.
    """
    lines = [line for _, line in text_lines(text, where) if len(line) <= SERIES_CHARACTERS]
    counted = [line for line in lines if line.startswith(PREFIX)]
    if counted:
        return _of_counters(counted, where)
    logged = [line for line in lines if LOGGED in line]
    if logged:
        return _of_log(logged, where)
    raise InputError(f"{where}: holds neither {PREFIX}* counters nor lines '{LOGGED} ...' of vLLM")


def _of_counters(lines: list[str], where: str) -> MeasuredAcceptance:
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        found = _SERIES.match(line)
        if found is not None:
            seen[found[1], found[2] or ""].append(_count(found[3], found[1], where))
    # A counter that fell was of an engine that started anew: what it counted since is its last value.
    gained = {key: values[-1] - (values[0] if len(values) > 1 and values[-1] >= values[0] else 0.0)
              for key, values in seen.items()}  # fmt: skip
    drafts = sum(value for (name, _), value in gained.items() if name == "num_drafts")
    drafted = sum(value for (name, _), value in gained.items() if name == "num_draft_tokens")
    by_position: dict[int, float] = defaultdict(float)
    for (name, labels), value in gained.items():
        position = _POSITION.search(labels)
        if name == "num_accepted_tokens_per_pos" and position is not None:
            by_position[int(position[1])] += value
    if drafts <= 0 or not by_position:
        raise InputError(f"{where}: needs {PREFIX}num_drafts above 0 and {PREFIX}num_accepted_tokens_per_pos")
    if sorted(by_position) != list(range(len(by_position))):
        raise InputError(f"{where}: the positions of {PREFIX}num_accepted_tokens_per_pos must count from 0 on")
    rates = [by_position[place] / drafts for place in range(len(by_position))]
    remarks = []
    if 0 < drafted < 0.995 * len(rates) * drafts:
        mean = drafted / drafts
        remarks.append(f"{mean:.2f} tokens were drafted in the mean, fewer than the {len(rates)} positions")
    return _checked(rates, drafts, where, remarks)


def _of_log(lines: list[str], where: str) -> MeasuredAcceptance:
    """Log lines weighed by their verifications, which are their drafted tokens over the positions."""
    sums: list[float] = []
    weight, plain = 0.0, 0
    for line in lines:
        rates, drafted = _RATES.search(line), _DRAFTED.search(line)
        length = _LENGTH.search(line)
        if rates is None or drafted is None:
            plain += 1
            continue
        values = [_count(part, "Per-position acceptance rate", where) for part in rates[1].split(",") if part.strip()]
        if length is not None and abs(_count(length[1], "Mean acceptance length", where) - 1 - sum(values)) > 0.1:
            raise InputError(f"{where}: a line's mean acceptance length is not 1 plus the sum of its rates by position")
        if not values or (sums and len(values) != len(sums)):
            raise InputError(f"{where}: its lines have different numbers of draft positions; take those of one run")
        verifications = float(drafted[1]) / len(values)
        sums = [total + verifications * value for total, value in zip(sums or [0.0] * len(values), values, strict=True)]
        weight += verifications
    if weight <= 0:
        raise InputError(f"{where}: no line '{LOGGED} ...' tells the rates by position and the drafted tokens")
    remarks = [f"{plain} lines without rates by position were left out"] if plain else []
    return _checked([total / weight for total in sums], weight, where, remarks)


def _count(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{where}: {name} must be a number of at least 0; got '{shortened(text)}'")
    return value


def _checked(rates: list[float], verifications: float, where: str, remarks: list[str]) -> MeasuredAcceptance:
    if len(rates) > MOST_POSITIONS:
        raise InputError(f"{where}: {len(rates)} draft positions are more than {MOST_POSITIONS}")
    if max(rates) > 1:
        raise InputError(f"{where}: more tokens of a position were accepted than there were verifications")
    falling = [min(rates[: place + 1]) for place in range(len(rates))]
    if falling != rates:
        remarks = [
            *remarks,
            "rates that rose with the position were lowered to those before them (they are cumulative)",
        ]
    return MeasuredAcceptance(tuple(round(rate, 6) for rate in falling), verifications, where, tuple(remarks))
