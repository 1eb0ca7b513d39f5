"""Damage that records of runs meet on their way, and what a reader must not make of it.

A step is invented where its number stands nowhere in the undamaged record, or where a value of it is none of that step:
of none of the steps, where the record has no numbers left and its steps are counted.
"""

import json
import random
import re
from collections.abc import Callable, Mapping

from benchmarks.framework_logs import CONSOLES, ROWS, Writer
from rlsim.readers.logs.reading import RunLog
from tests.readers.log_forms import LEVEL

STEPS = range(3, 11)
NEAR = 1e-6
Row = Mapping[str, float]


def step_of(n: int) -> dict[str, float]:
    """A step of which every quantity is another, with the digits that all formats print."""
    rng = random.Random(n)
    found = {name: round(value * rng.uniform(0.8, 1.2), 2) for name, value in LEVEL.items()}
    parts = sum(value for name, value in found.items() if not name.endswith("tokens"))
    return {"step": round(parts + rng.uniform(1, 3), 2), **found}


def _rows() -> list[dict[str, float]]:
    return [
        {"step": n} | {f"timing_s/{name}": value for name, value in (("step", one["step"]), ("gen", one["generation"]),
                                                                     ("update_actor", one["train"]))}
        for n in STEPS for one in (step_of(n),)
    ]  # fmt: skip


def _csv(separator: str, comma: bool) -> str:
    rows = _rows()
    cells = [[str(value).replace(".", ",") if comma else str(value) for value in row.values()] for row in rows]
    return "".join(separator.join(line) + "\n" for line in ([*rows[0]], *cells))


def _markdown() -> str:
    lines = ["| step | generation | train | total |", "|---|---|---|---|"]
    for n in STEPS:
        one = step_of(n)
        lines.append(f"| {n} | {one['generation']} | {one['train']} | {one['step']} |")
    return "\n".join(lines) + "\n"


WRITERS: Mapping[str, Writer] = {name: writer for name, (writer, _) in (CONSOLES | ROWS).items()}
EXPORTS: Mapping[str, str] = {
    "CSV": _csv(",", False),
    "CSV with semicolons": _csv(";", True),
    "JSON array": json.dumps(_rows(), indent=1),
    "Markdown": _markdown(),
}
"""Forms that loggers and people make of the same metrics."""


def records() -> dict[str, tuple[str, bool]]:
    """Undamaged records by name, and whether they number their steps."""
    out = {name: "".join(write(n, step_of(n)) for n in STEPS) for name, write in WRITERS.items()} | dict(EXPORTS)
    return {name: (text, name not in COUNTED) for name, text in out.items()}


LOOSE = ("verl's pairs",)
COUNTED = ("verl's dictionary", "verl's pairs", "SkyRL", "trl", "Markdown")


def _cut_number(text: str, rng: random.Random, put: Callable[[str], str]) -> str:
    point = "[.,]" if ";" in text else r"\."
    numbers = list(re.finditer(rf"\d+(?:{point}\d+)?(?:e[-+]\d+)?", text))
    found = rng.choice(numbers)
    return text[: found.start()] + put(found[0]) + text[found.end() :]


def _place_in(number: str, rng: random.Random) -> str:
    at = rng.randrange(len(number) + 1)
    return number[:at] + "\n" + number[at:]


WRONG = ("None", "null", "true", '"abc"', "[1, 2]", "{}", "-5", "nan", "inf", "1e400", "", "n/a", "1 234,5")


def damaged(text: str, rng: random.Random, loose: bool = False) -> tuple[str, str]:
    """The kind of damage, and the text with it. loose: nothing in it tells where a step begins, so that nobody can say
    what a piece of it begins with."""
    lines = text.splitlines(keepends=True)
    at, line = rng.randrange(len(text)), rng.randrange(len(lines))
    other = rng.randrange(len(lines))

    # Lines of one kind that change places, and a block between two of them that is moved, leave a log of another run.
    kinds_of = [re.sub(r"\d+", "0", one) for one in lines]
    while kinds_of[line] == kinds_of[other] and len(set(kinds_of)) > 1:
        line, other = rng.randrange(len(lines)), rng.randrange(len(lines))

    def shuffled() -> str:
        return "".join(rng.sample(lines, len(lines)))

    def swapped() -> str:
        own = list(lines)
        own[line], own[other] = own[other], own[line]
        return "".join(own)

    def moved() -> str:
        first, last = sorted((line, other))
        block, rest, kinds = lines[first:last], lines[:first] + lines[last:], kinds_of[:first] + kinds_of[last:]
        to = rng.choice([k for k, kind in enumerate(kinds) if kind not in (kinds_of[first], kinds_of[last])] or [0])
        return "".join(rest[:to] + block + rest[to:])

    def interleaved() -> str:
        own, second = list(lines[:line]), list(lines[line:])
        out = []
        while own or second:
            source = own if own and (not second or rng.random() < 0.5) else second
            out.append(source.pop(0))
        return "".join(out)

    def wrapped() -> str:
        width = rng.randrange(20, 130)
        return "".join("\n".join(one[k : k + width] for k in range(0, max(1, len(one)), width)) for one in lines)

    inserted = rng.choice(["null", "nan", "\x1b[31m", "{", "}", "'", "\ufffd", "\n", "None", "[1, 2]", "\r", " ", "\0"])
    kinds: dict[str, Callable[[], str]] = {
        "cut": lambda: text[:at],
        "head cut": lambda: text[at:],
        "rotated": lambda: text[at:] + text[:at],
        "rotated lines": lambda: "".join(lines[line:] + lines[:line]),
        "lines lost": lambda: "".join(one for one in lines if rng.random() < 0.8),
        "one line lost": lambda: "".join(lines[:line] + lines[line + 1 :]),
        "inserted": lambda: text[:at] + inserted + text[at:],
        "shuffled": shuffled,
        "swapped": swapped,
        "moved": moved,
        "restarted": lambda: text + "".join(lines[line:]),
        "doubled lines": lambda: "".join(one * (1 + (rng.random() < 0.3)) for one in lines),
        "interleaved": interleaved,
        "decimal commas": lambda: re.sub(r"(?<=\d)\.(?=\d)", ",", text),
        "wrong type": lambda: _cut_number(text, rng, lambda _: rng.choice(WRONG)),
        "broken number": lambda: _cut_number(text, rng, lambda number: _place_in(number, rng)),
        "broken numbers": lambda: re.sub(
            r"\d+\.\d+", lambda m: _place_in(m[0], rng) if rng.random() < 0.1 else m[0], text),
        "wrapped": wrapped,
        "line ends lost": lambda: "".join(one.rstrip("\n") if rng.random() < 0.1 else one for one in lines),
    }  # fmt: skip
    # Of pairs without numbers these are a coherent log of other steps.
    kind = rng.choice([one for one in kinds if not (loose and one.startswith(("head", "rotated", "interleaved")))])
    return kind, kinds[kind]()


def invented(true: RunLog, found: RunLog, numbered: bool) -> list[str]:
    """What a damaged record is said to hold and the undamaged one did not; true: the undamaged."""
    out, counted = list[str](), not numbered or found.steps == tuple(range(1, len(found.steps) + 1))
    for place, step in enumerate(found.steps):
        if not counted and step not in true.steps:
            out.append(f"step {step}")
            continue
        for name, values in found.values.items():
            value = float(values[place])
            known = true.values.get(name)
            if value != value:
                continue
            own = [] if known is None else [float(known[true.steps.index(step)])] if not counted else known.tolist()
            if not any(abs(value - one) <= NEAR * max(1.0, abs(one)) for one in own):
                out.append(f"step {step}: {name} {value:g}")
    return out
