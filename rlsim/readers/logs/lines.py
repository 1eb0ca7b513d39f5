"""Metrics in the lines that frameworks print, one record for each step, whatever stands around them.

Read are the forms of the consoles (verl's ``step:5 - name:value``, NeMo-RL's bullets, ``perf N: {...}`` of slime, the
dictionaries of OpenRLHF, ROLL and trl, SkyRL's ``Finished: 'name', time cost: 3.10s``, AReaL's grid, prime-rl's
``Step 3 | 2.7s``), the summary of wandb, Prometheus' text, Markdown tables, and a name and a value on each line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlsim.files.reading import LOG_LINES, text_lines
from rlsim.readers.logs.naming import canonical, line_names, words
from rlsim.readers.logs.tensorboard import Scalars, number_of

LINE = 100_000
"""Characters of a line that are read."""
_NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|nan|inf)"
# A name may not begin within a path or an address, whose end would pass for a metric; repetitions are bounded, since a
# line of any content must not take quadratic time.
_PAIR = re.compile(
    r"(?<![\w./@-])((?:vllm:|sglang:)?[A-Za-z_][\w./@-]{0,150}(?:\((?:s/it|GiB)\))?)(?:\{[^{}]{0,500}\})?[\"'`]?\s*(?:[:=|\u2502]\s*|\s+)[\"'`]?"
    rf"(?:np\.float\d+\(|tensor\()?({_NUMBER})(?:\s?(ms|s|sec|seconds|min|h)\b)?(?![\w/])"
)
_PROFILED = re.compile(rf"(profiling/Time taken: [\w.]{{1,100}})[\"']?\s*:?\s*({_NUMBER})")
_BULLET = re.compile(rf"^[^\w]*([A-Za-z_][\w/ ]{{0,80}}?):\s*({_NUMBER})\s*(s\b|$)")
_FINISHED = re.compile(rf"Finished: '([\w]{{1,80}})', time cost: ({_NUMBER})s")
_STARTED = "Started: 'step'"
_STEP_LINE = re.compile(r"\bStep (\d{1,12}) \|\s+((?:[\d.]+(?:ms|[smhd])\s?){1,2})\s*\|")
_STEP = re.compile(
    r"\bstep:(\d{1,12}) - |={5,} ?Step (\d{1,12})[/ ]|\bperf (\d{1,12}): \{|\b[Gg]lobal step (\d{1,12}): \{"
    r"|\bTrain step (\d{1,12})/\d+ done|\bpipeline step (\d{1,12}) start"
)
_STEP_KEY = re.compile(
    r"[\"'](?:_?step|Step|(?:train/|training/|trainer/|rollout/)?(?:global_)?step|iteration|global_step/max_steps)[\"']"
    r"\s*:\s*[\"']?(\d{1,12})\b"
)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DURATION = re.compile(r"([\d.]+)(ms|[smhd])")
SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_Pair = tuple[str, float, int]
"""A metric, its value, and where the value ends in its line."""


class _Records:
    """Metrics by step. A step without a number is counted: it ends where a metric comes again."""

    def __init__(self, scalars: Scalars) -> None:
        self.scalars, self.step, self.numbered, self.summed = scalars, 1, False, False
        self.now: dict[str, float] = {}
        self.last = ""

    def begin(self, step: int | None) -> None:
        """A record of step ``step``, or of the next one."""
        # A heading that another follows without a metric between them is no step.
        counted = self.step + bool(self.now)
        self.end()
        self.step, self.numbered = (counted, False) if step is None else (step, True)

    def add(self, name: str, value: float) -> None:
        if name in self.now and not self.numbered and not self.summed:
            self.begin(None)
        # Timers of one step add up; of a numbered step the first record counts, later ones are of validation.
        self.now[name] = self.now.get(name, 0.0) + value if self.summed else self.now.get(name, value)
        self.last = name

    def end(self) -> None:
        if self.now:
            self.scalars.add_all(float(self.step), self.now)
        self.now = {}


def add_lines(scalars: Scalars, text: str) -> None:
    """Known metrics of a text's lines. Of a text that ends within a number, that number is left out where steps before
    it are whole: it may be cut."""
    records, cut = _Records(scalars), not text.endswith("\n")
    last = len(text.rstrip("\n").splitlines()) if cut else 0
    # A look for the escape costs next to nothing beside a substitution in a log that has no colours.
    for number, raw in text_lines(_ANSI.sub("", text) if "\x1b" in text else text, scalars.where, LOG_LINES):
        line = raw[:LINE]
        _begin(records, line)
        for name, value, end in _pairs(line):
            if cut and number == last and end >= len(line.rstrip()) and records.step > 1 and name in scalars.values:
                continue
            records.add(name, value)
    records.end()
    # People's words (train, total) stand in too many lines to be looked for in a log whose names are known.
    if not scalars.values:
        for step, row in enumerate(_worded(text, scalars.where), start=1):
            scalars.add_all(float(step), row)


def _begin(records: _Records, line: str) -> None:
    if _STARTED in line:
        # What ran before the first step is of none.
        records.now = records.now if records.summed else {}
        records.begin(None)
        records.summed = True
    found = _STEP.search(line) or _STEP_LINE.search(line)
    if found is not None:
        records.begin(int(next(group for group in found.groups() if group)))
    elif (key := _STEP_KEY.search(line)) is not None:
        if records.numbered or not records.now:
            records.begin(int(key[1]))
        else:  # a dictionary over several lines, whose step comes within it
            records.step, records.numbered = int(key[1]), True


def _pairs(line: str) -> Iterator[_Pair]:
    if (finished := _FINISHED.search(line)) is not None:
        known, value = canonical(f"timing/{finished[1]}"), plain_number(finished[2])
        if known and value is not None:
            yield known, value, finished.end()
        return
    if (step := _STEP_LINE.search(line)) is not None:
        yield "time/step", sum(float(n) * SECONDS[unit] for n, unit in _DURATION.findall(step[2])), step.end()
    bullet = _BULLET.match(line)
    if bullet is not None and (known := line_names().get(bullet[1].strip())):
        if (value := plain_number(bullet[2])) is not None:
            yield known, value, bullet.end()
        return
    for found in (*_PROFILED.finditer(line), *_PAIR.finditer(line)):
        known, value = canonical(found[1]), plain_number(found[2])
        if known is not None and value is not None:
            unit = found[3] if found.re is _PAIR and found[3] else "s"
            yield known, value * SECONDS[unit] * (1e-3 if found[1].endswith("_ms") else 1.0), found.end()


def plain_number(text: str) -> float | None:
    """A number as people and frameworks write it: thousands with commas, decimals also behind a comma."""
    return number_of(text.rstrip(".,"))


def _worded(text: str, where: str) -> Iterator[dict[str, float]]:
    """Rows of tables in words of people's own, also such with a header; else a name and a value on each line."""
    header: list[str | None] = []
    single: dict[str, float] = {}
    for _, line in text_lines(text, where, LOG_LINES):
        cells = [cell.strip(" *`_") for cell in re.split(r"[|\t\u2502]|:\s|\s{2,}", line[:LINE].strip("| \t"))]
        names = [words().get(re.sub(r"\s*[\[(]m?s(?:ec)?[\])]$", "", cell.lower())) for cell in cells]
        values = [_cell_seconds(cell) for cell in cells]
        if sum(name is not None for name in names) > 1:
            header = names
        elif header and len(values) == len(header) and any(value is not None for value in values):
            yield {name: value for name, value in zip(header, values, strict=True) if name and value is not None}
        elif names[0] is not None and (value := next((one for one in values[1:] if one is not None), None)) is not None:
            single.setdefault(names[0], value)
    if single:
        yield single


def _cell_seconds(text: str) -> float | None:
    found = re.fullmatch(rf"({_NUMBER})\s?(ms|s|sec|seconds|min|h|tokens)?", text)
    value = None if found is None else plain_number(found[1])
    return None if value is None or found is None else value * SECONDS.get(found[2] or "s", 1.0)
