"""``rlsim traces``."""

from __future__ import annotations

import json

from rlsim.cli import options as o
from rlsim.cli.output import print_answer, terminal_style
from rlsim.readers.traces.form import Format

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
    from rlsim.readers.traces.workload import TraceAnswer, workload_of
    from rlsim.report.files import write_files

    names = (column, prompt_column, group_column)
    found = read_trace(file, Reading(form, *names, group_size, characters_per_token))
    answer = found if isinstance(found, MeasuredAcceptance) else workload_of(found)
    if out is not None and out.suffix in FRAGMENT_SUFFIXES:
        write_files({out.name: answer.fragment()}, out.parent)
    elif out is not None:
        figures = json.dumps(answer.as_dict(), indent=1) + "\n"
        lengths = {"lengths.png": answer.picture()} if isinstance(answer, TraceAnswer) else {}
        write_files({"fragment.yaml": answer.fragment(), "trace.json": figures, **lengths}, out)
    written = "" if out is None else f"\nwritten: {out}"
    print_answer(json.dumps(answer.as_dict()) if as_json else answer.text(terminal_style()) + written)
