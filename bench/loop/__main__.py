"""``python -m bench.loop``: run the loop for real, with torch and numpy only; what each step and phase took.

Exit code 2: something the user can mend, in one message.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import BenchError
from bench.loop.settings import DEVICES, LoopSettings, base_settings, settings_from

SMOKE = (
    LoopSettings("smoke sync", "loop-tiny", prompts=2, samples=2, steps=2, running=3, response_tokens=(4, 10, 16, 24)),
    LoopSettings("smoke drafts", "loop-tiny", prompts=2, samples=2, steps=2, drafter="model", draft_length=2),
    LoopSettings("smoke ngram", "loop-tiny", prompts=2, samples=2, steps=2, drafter="ngram", draft_length=3),
    LoopSettings("smoke lag 1", "loop-tiny", prompts=2, samples=2, steps=3, placement="split", lag=1, running=3),
)
"""Every mechanism once, with a policy too small to learn anything; under half a minute."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the loop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.loop", description="Run a small RL loop and time it.")
    parser.add_argument("--settings", type=Path, help="JSON object, or list of them, with keys of LoopSettings")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; repeatable")
    parser.add_argument("--smoke", action="store_true", help="four tiny configurations")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure the loop's parts instead")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="of --measure")
    parser.add_argument("--journal", type=Path, metavar="DIR", help="also write every event: DIR/round_1/NAME.jsonl")
    parser.add_argument("--rounds", type=int, default=1, help="times that all are run; every second one backwards")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="start no configuration after that")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    chosen = parser.parse_args(arguments)
    # Threads that spin at a barrier make a shared CPU tens of times slower; OpenMP reads this as torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        if chosen.measure is not None:
            return _measure(chosen.measure, chosen.device)
        wanted = SMOKE if chosen.smoke else _wanted(chosen.settings, chosen.set)
        answer = _run(wanted, chosen.journal, chosen.rounds, chosen.budget)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        print("error: the loop needs torch and numpy (pip install torch numpy)", file=sys.stderr)
        return 2
    print(json.dumps(answer, indent=1) if chosen.json else _table(answer))
    return 0


def _say(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def _wanted(path: Path | None, words: Sequence[str]) -> Sequence[LoopSettings]:
    content: Any = {}
    if path is not None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BenchError(f"cannot read {path}: {str(error)[:60]}") from error
    given: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            raise BenchError(f"--set takes KEY=VALUE, got '{word[:40]}'")
        try:
            given[key] = json.loads(value)
        except ValueError:
            given[key] = value
    listed = content if isinstance(content, list) else [content]
    if not all(isinstance(one, dict) for one in listed):
        raise BenchError(f"{path} must hold a JSON object or a list of them")
    return [settings_from({**one, **given}) for one in listed]


def _run(wanted: Sequence[LoopSettings], journals: Path | None, rounds: int, budget_s: float | None) -> dict[str, Any]:
    from bench.loop.events import write_events
    from bench.loop.results import SCHEMA, require_device, row_of, run_loop

    rows: list[dict[str, Any]] = []
    started_s = time.monotonic()
    for settings in wanted:
        require_device(settings.device)
    for number in range(rounds):
        for settings in reversed(wanted) if number % 2 else wanted:
            if budget_s is not None and time.monotonic() - started_s > budget_s:
                return {"schema": SCHEMA, "rows": rows}
            events = run_loop(settings, _say).events
            rows.append(row_of(settings, events))
            if journals is not None:
                write_events(settings, events, journals / f"round_{number + 1}")
    return {"schema": SCHEMA, "rows": rows}


def _measure(path: Path, device: str) -> int:
    from bench.cases import write_whole
    from bench.loop.measure import GPU, Plan, measure_loop
    from bench.loop.results import require_device

    require_device(device)
    found = measure_loop(base_settings(device), GPU if device == "cuda" else Plan(), _say)
    write_whole(path, json.dumps(found, indent=1) + "\n", f"cannot write {path}")
    return 0


def _table(answer: dict[str, Any]) -> str:
    names = ("prepare_s", "generation_s", "exposed_generation_s", "logprob_s", "train_s", "refit_s")
    lines = [f"{'configuration':24} {'step s':>8} " + " ".join(f"{name[:-2][:12]:>12}" for name in names)]
    for row in answer["rows"]:
        phases = " ".join(f"{row['phases'][name]['measured_s']:12.3f}" for name in names)
        lines.append(f"{row['name'][:24]:24} {row['measured_s']:8.3f} {phases}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
