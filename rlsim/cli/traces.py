"""``rlsim traces``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rlsim.cli import options as o
from rlsim.cli.output import print_answer, terminal_style
from rlsim.files.writing import staged_folder
from rlsim.readers.traces.form import Format

if TYPE_CHECKING:
    from rlsim.readers.traces.acceptance import MeasuredAcceptance
    from rlsim.readers.traces.workload import TraceAnswer

FRAGMENT_SUFFIXES = (".yaml", ".yml")


def traces(
    file: o.TraceArgument,
    form: o.TraceFormatOption = Format.AUTO,
    column: o.ColumnOption = None,
    prompt_column: o.PromptColumnOption = None,
    group_column: o.GroupColumnOption = None,
    group_size: o.GroupSizeOption = None,
    characters_per_token: o.CharactersOption = 4.0,
    as_json: o.JsonOption = False,
    out: o.TraceOutOption = None,
) -> None:
    """Turn measured requests into a workload, or vLLM's counters of speculative decoding into its acceptance.

    Reads CSV, JSONL, Parquet, Mooncake and Azure traces, rollouts of verl and train_data of NeMo-RL (a file, or a
    folder of several steps), Prometheus counters vllm:spec_decode_* and log lines "SpecDecoding metrics". Prints a
    fragment to paste into a scenario. --out FILE.yaml writes the fragment, --out DIR also the figures and a picture.
    """
    from rlsim.readers.traces.acceptance import MeasuredAcceptance
    from rlsim.readers.traces.reading import Reading, read_trace
    from rlsim.readers.traces.workload import workload_of

    names = (column, prompt_column, group_column)
    found = read_trace(file, Reading(form, *names, group_size, characters_per_token))
    answer = found if isinstance(found, MeasuredAcceptance) else workload_of(found)
    written = ""
    if out is not None:
        _write(answer, out)
        written = f"\nwritten: {out}"
    print_answer(json.dumps(answer.as_dict()) if as_json else answer.text(terminal_style()) + written)


def _write(answer: TraceAnswer | MeasuredAcceptance, out: Path) -> None:
    """The fragment alone where ``out`` is a YAML file, else a folder with it, the figures and a picture of lengths."""
    if out.suffix in FRAGMENT_SUFFIXES:
        with staged_folder(out.parent) as folder:
            (folder / out.name).write_text(answer.fragment(), encoding="utf-8")
        return
    from rlsim.readers.traces.workload import TraceAnswer

    with staged_folder(out) as folder:
        (folder / "fragment.yaml").write_text(answer.fragment(), encoding="utf-8")
        (folder / "trace.json").write_text(json.dumps(answer.as_dict(), indent=1) + "\n", encoding="utf-8")
        if isinstance(answer, TraceAnswer):
            from rlsim.report.figures.style import save_picture

            save_picture(answer.picture(), folder / "lengths.png")
