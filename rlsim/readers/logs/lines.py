"""Metrics in the lines that frameworks print, one record for each step, whatever stands around them.

Read are the forms of the consoles (verl's ``step:5 - name:value``, NeMo-RL's bullets, ``perf N: {...}`` of slime, the
dictionaries of OpenRLHF, ROLL and trl, SkyRL's ``Finished: 'name', time cost: 3.10s``, AReaL's grid, prime-rl's
``Step 3 | 2.7s``), the summary of wandb, Prometheus' text, Markdown tables, and a name and a value on each line.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from rlsim.errors import InputError
from rlsim.files.reading import LOG_LINES, text_lines
from rlsim.readers.logs.naming import OTHER, canonical, line_names, words
from rlsim.readers.logs.records import Entry, Records
from rlsim.readers.logs.tensorboard import Scalars, number_of

LINE = 100_000
"""Characters of a line that are read."""
_NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|nan|inf)"
_TAIL = r"(?=$|(?!\s\d{3}\b| ?(?:ms|min|h)\b| [\d.](?!\d{9,12}\b))\s|[,;)\]}|\u2502%<\"'`](?![\w.]))"
"""What ends a number: of one that goes on otherwise, as where something was written into it, this is not all."""
# A name may not begin within a path or an address, whose end would pass for a metric; repetitions are bounded, since a
# line of any content must not take quadratic time.
_PAIR = re.compile(
    r"(?<![\w./@-])((?:vllm:|sglang:)?[A-Za-z_][\w./@-]{0,150}(?:\((?:s/it|GiB)\))?)(?:\{[^{}]{0,500}\})?[\"'`]?\s*(?:[:=|\u2502]\s*|\s+)[\"'`]?"
    rf"(?:np\.float\d+\(|tensor\()?({_NUMBER})(?:\s?(ms|s|sec|seconds|min|h)\b)?{_TAIL}"
)
_PROFILED = re.compile(rf"(profiling/Time taken: [\w.]{{1,100}})[\"']?\s*:?\s*({_NUMBER}){_TAIL}")
_ORCHESTRATED = re.compile(r"\s*Reward ")
"""What follows the time in the line of prime-rl's orchestrator, the loss in its trainer's (orchestrator.py,
log_train_batch at 559b4477)."""
_BETWEEN = "] _fit_update_weights, "
"""In a line of verl that tells a timer before the step's own line does (fully_async_trainer.py at 1dda039b9)."""
_BULLET = re.compile(rf"^[^\w]*([A-Za-z_][\w/ ]{{0,80}}?):\s*({_NUMBER})\s*(s\b|$)")
_FINISHED = re.compile(rf"Finished: '([\w]{{1,80}})', time cost: ({_NUMBER})s")
_STARTED = re.compile(r"Started: '(\w{1,80})'")
_STEP_LINE = re.compile(r"\bStep (\d{1,12}) \|\s+((?:[\d.]+(?:ms|[smhd])\s?){1,2})\s*\|")
_STEP = re.compile(
    r"\bstep:(\d{1,12}) - |={5,} ?Step (\d{1,12})(?:/| =)|\bperf (\d{1,12}): \{|\b[Gg]lobal step (\d{1,12}): \{"
    r"|\bTrain step (\d{1,12})/\d+ done|\bpipeline (?:rollout global )?step (\d{1,12}) start|\bStep (\d{1,12}) \|"
)
_STEP_KEY = re.compile(
    r"[\"'](_?step|Step|(?:train/|training/|trainer/|rollout/)?(?:global_)?step|iteration|global_step/max_steps)[\"']"
    r"\s*:\s*[\"']?(\d{1,12})(?=$|[,}/\"'](?!\w)|/\d)"
)
STEP = "step_s"
_ROW_STEP = "_step"
"""wandb's number of a row, which is none of the trainer."""
_OPENS = re.compile(r"\s*(?:\[\s*)?[{}]")
_OBJECT = re.compile(r"^\s*\{?\s*\n\s*\"[^\"\n]{1,150}\": ", re.MULTILINE)
"""The beginning of an object of a document that is written over several lines."""
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GOES_ON = re.compile(r"(?:\d|[.,]\d|[eE][-+]?\d)[\d.,]*(?:[eE][-+]?\d+)?(?:s\b)?(?=$|[\s,;)\]}|\u2502\"'])")
"""The rest of a number that a line end broke, at the beginning of the next line; not a date, a time or a share."""
_WHOLE, _WHOLE_END = (
    ("", "(", "[", "{", "|", "\u2502", "\u2022", "<", "#"),
    (")", "]", "}", "|", "\u2502", ";", ">", "!"),
)
_OPEN_END = re.compile(r"[\w./@:=-]$")
SPAN = 200
"""Characters on either side of a line end within which a metric may be broken."""
_DURATION = re.compile(r"([\d.]+)(ms|[smhd])")
SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_Pair = tuple[str, str, float, int]
"""A metric, its number, seconds of its unit, and where the number ends in its line."""


def add_lines(scalars: Scalars, text: str) -> None:
    """Known metrics of a text's lines. Of a text that ends within a number, that number is left out where steps before
    it are whole: it may be cut."""
    # A look for the escape costs next to nothing beside a substitution in a log that has no colours.
    text = _ANSI.sub("", text) if "\x1b" in text else text
    keys = {found[1] for found in _STEP_KEY.finditer(text)}
    if _ROW_STEP in keys and (len(keys) > 1 or "profiling/" in text):
        raise InputError(f"{scalars.where}: is broken JSON of wandb; its rows are no steps of the trainer")
    if len(_OBJECT.findall(text)) > 1:
        raise InputError(f"{scalars.where}: is a part of a JSON document; give it whole, or JSON lines")
    records, before, joined = Records(), "", 0
    whole = text.endswith("\n")
    for number, line in text_lines(text, scalars.where, LOG_LINES):
        if line != before:  # a line that was written twice
            joined = _add_line(records, before[:LINE], line, number, whole, joined)
        before = line
    _add_line(records, before[:LINE], "", 0, whole, joined)
    records.into(scalars)
    # People's words (train, total) stand in too many lines to be looked for in a log whose names are known.
    if not scalars.values:
        for count, (step, row) in enumerate(_worded(text, scalars.where), start=1):
            scalars.add_all(float(count) if step is None else step, row)


def _add_line(records: Records, line: str, after: str, number: int, whole: bool, joined: int) -> int:
    """Metrics of a line, and where the one ends that begins in it and goes on in the next. after: the next line;
    number: of that, 0 of the last; joined: where such a one ends in this."""
    marks = [(found.start(), int(next(one for one in found.groups() if one))) for found in _STEP.finditer(line)]
    end, broken = len(line.rstrip()), _GOES_ON.match(after) is not None
    if not marks:
        _begin(records, line, number, end if after[:1].isdigit() else -1)
    for name, text, scale, at in _pairs(line):
        while marks and at > marks[0][0]:
            records.begin(marks.pop(0)[1], number)
        if at > joined:
            text = "" if broken and at >= end else text
            records.add(Entry(name, text, scale, number, at >= end and not number and not whole))
    for _, step in marks:
        records.begin(step, number)
    border, both = len(line[-SPAN:]), line[-SPAN:] + after[:SPAN]
    # Lines that end or begin with brackets or blanks, as most do, are no halves of one.
    halves = after[:1] not in _WHOLE and line[-1:] not in _WHOLE_END
    for mark in _STEP.finditer(both) if halves else ():
        if mark.start() < border < mark.end():
            records.begin(int(next(one for one in mark.groups() if one)), number)
    for found in _PAIR.finditer(both) if halves and _OPEN_END.search(line) else ():
        # Terminals break lines within names; a number that is broken may be any.
        if found.start() < border <= found.start(2) and (known := canonical(found[1])) is not None:
            at = found.end(2) - border
            text = found[2] if at < len(after.rstrip()) else ""
            records.add(
                Entry(known, text, SECONDS[found[3] or "s"] * (1e-3 if found[1].endswith("_ms") else 1.0), number)
            )
            return at
    return 0


def _begin(records: Records, line: str, number: int, broken_at: int) -> None:
    """A step whose number is no heading: a key of it, or a timer of the whole step that starts."""
    for started in _STARTED.findall(line) if "Started: " in line else ():
        if started == "step":
            if not any(one.summed for one in records.all):
                records.now.entries.clear()  # what ran before the first step is of none
            records.begin(None, number, summed=True)
        records.now.started[canonical(f"timing/{started}") or ""] += 1
    opened = _OPENS.match(line) is not None
    if opened:
        records.begin(None, number, records.now.summed, opened=True)
    key = _STEP_KEY.search(line) if "'" in line or '"' in line else None
    if key is None:
        return
    if key.end() == broken_at:
        records.begin(None, number)
    # A dictionary over several lines has its step within it.
    elif records.now.step is None and not records.now.summed and "{" not in line[: key.start()]:
        records.now.step, records.now.line, records.now.led = int(key[2]), number, len(records.now.entries)
    else:
        records.begin(int(key[2]), number)


def _pairs(line: str) -> Iterator[_Pair]:
    if _BETWEEN in line:
        return
    if finished := list(_FINISHED.finditer(line)):
        for one in finished:
            if known := canonical(f"timing/{one[1]}"):
                yield known, one[2], 1.0, one.end()
        return
    if (step := _STEP_LINE.search(line)) is not None:
        seconds = sum(float(n) * SECONDS[unit] for n, unit in _DURATION.findall(step[2]))
        beside = _ORCHESTRATED.match(line, step.end()) is not None
        yield f"{OTHER if beside else ''}time/step", repr(seconds), 1.0, step.end()
    bullet = _BULLET.match(line)
    if bullet is not None and (known := line_names().get(bullet[1].strip())):
        yield known, bullet[2], 1.0, bullet.end()
        return
    for found in (*_PROFILED.finditer(line), *_PAIR.finditer(line)):
        known = canonical(found[1])
        if known is not None and plain_number(found[2]) is not None:
            unit = found[3] if found.re is _PAIR and found[3] else "s"
            yield known, found[2], SECONDS[unit] * (1e-3 if found[1].endswith("_ms") else 1.0), found.end()


def plain_number(text: str) -> float | None:
    """A number as people and frameworks write it: thousands with commas, decimals also behind a comma."""
    return number_of(text.rstrip(".,"))


def _worded(text: str, where: str) -> Iterator[tuple[float | None, dict[str, float]]]:
    """Rows of tables in words of people's own, also such with a header; else a name and a value on each line. Of two
    columns of steps the first is their number."""
    header: list[str | None] = []
    single: dict[str, float] = {}
    rows: list[tuple[float | None, dict[str, float]]] = []
    lines = [line for _, line in text_lines(text, where, LOG_LINES)]
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        # A row without its end is cut, as a number that goes on in the next line is.
        if (line.lstrip()[:1] == "|" != line.rstrip()[-1:]) or _GOES_ON.match(after):
            continue
        cells = [cell.strip(" *`_") for cell in re.split(r"[|\t\u2502]|:\s|\s{2,}", line[:LINE].strip("| \t"))]
        names = [words().get(re.sub(r"\s*[\[(]m?s(?:ec)?[\])]$", "", cell.lower())) for cell in cells]
        values = [_cell_seconds(cell) for cell in cells]
        if sum(name is not None for name in names) > 1:
            header = names
        elif header and len(values) == len(header) and any(value is not None for value in values):
            row = [(name, value) for name, value in zip(header, values, strict=True) if name]
            step = row.pop(0)[1] if row and header.count(row[0][0]) > 1 else None
            rows.append((step, {name: value for name, value in row if value is not None}))
        elif names[0] is not None and (value := next((one for one in values[1:] if one is not None), None)) is not None:
            single.setdefault(names[0], value)
    counted = [row.get(STEP, 0.0) for step, row in rows if step is None]
    if len(counted) > 2 and all(second - first == 1 for first, second in pairwise(counted)):
        rows = [(row.pop(STEP), row) for _, row in rows]  # numbers, and no seconds
    yield from rows
    if single:
        yield None, single


def _cell_seconds(text: str) -> float | None:
    found = re.fullmatch(rf"({_NUMBER})\s?(ms|s|sec|seconds|min|h|tokens)?", text)
    value = None if found is None else plain_number(found[1])
    return None if value is None or found is None else value * SECONDS.get(found[2] or "s", 1.0)
