"""Traces of requests: formats, distributions, groups, caps, and hostile files."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlsim.errors import InputError
from rlsim.files.reading import LINE_CHARACTERS
from rlsim.loading.scenario import load_scenario
from rlsim.readers.traces import reading
from rlsim.readers.traces.reading import Format, Reading, read_acceptance, read_trace
from rlsim.readers.traces.requests import Requests
from rlsim.readers.traces.workload import (
    TraceAnswer,
    _share,
    cap_of,
    fit_lognormal,
    group_correlation,
    quantile_table,
    workload_of,
)
from rlsim.schema.workload import Workload
from rlsim.workload.draw import draw

Command = Callable[..., tuple[int, str, str]]
RNG = np.random.default_rng(5)


def requests_of(path: Path, **how: object) -> Requests:
    found = read_trace(path, Reading(**how))  # type: ignore[arg-type]
    assert isinstance(found, Requests)
    return found


def answer_of(path: Path, **how: object) -> TraceAnswer:
    return workload_of(requests_of(path, **how))


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# formats


def test_traces_of_others_and_of_nemo_rl_are_told_by_their_columns(tmp_path: Path) -> None:
    # First rows of both traces (kvcache-ai/Mooncake, FAST25-release, Apache-2.0; Azure/AzurePublicDataset, CC-BY-4.0).
    rows: list[dict[str, object]] = [
        {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]},
        {"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]},
    ]
    mooncake = requests_of(written(tmp_path / "m.jsonl", rows))
    assert (mooncake.form, mooncake.response.tolist(), mooncake.groups) == ("mooncake", [500, 490], None)
    assert mooncake.prompt is not None and mooncake.prompt.tolist() == [6758, 7322]
    (tmp_path / "a.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9,396,109\n"
    )
    azure = requests_of(tmp_path / "a.csv")
    assert (azure.form, azure.response.tolist()) == ("azure", [44, 109])
    folder = tmp_path / "rollouts"
    folder.mkdir()
    for step in (2, 10):
        texts = [("ask one", "x" * 40), ("ask one", "y" * 80), ("ask two", "z" * 20), ("ask two", "\u2028" * 8)]
        written(folder / f"{step}.jsonl", [{"input": i, "output": o, "score": 1.0, "step": step} for i, o in texts])
    found = requests_of(folder)
    assert found.form == "verl" and found.response.tolist() == [10, 20, 5, 2] * 2
    assert found.groups is not None and found.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "assumed: 4 characters a token" in found.remarks[0]
    assert requests_of(folder, characters_per_token=2.0).response[0] == 20
    ids = [[7, 7, 1, 2, 3], [7, 7, 4, 5], [8, 1, 2, 3, 4], [8, 6, 0, 0, 0]]
    lengths, prompts = [5, 4, 5, 2], [2, 2, 1, 1]
    rows: list[dict[str, object]] = [
        {"input_lengths": n, "token_ids": i, "token_loss_mask": [0] * p + [1] * (len(i) - p)}
        for n, i, p in zip(lengths, ids, prompts, strict=True)
    ]
    masked = requests_of(written(tmp_path / "train_data_step1.jsonl", rows))
    plain = [{key: row[key] for key in ("input_lengths", "token_ids")} for row in rows]
    path = written(tmp_path / "plain.jsonl", plain)
    grouped = requests_of(path, group_size=2)
    for found in (masked, grouped):
        assert (found.form, found.response.tolist()) == ("nemo-rl", [3, 2, 4, 1])
        assert found.prompt is not None and found.prompt.tolist() == prompts
        assert found.groups is not None and found.groups.tolist() == [0, 0, 1, 1]
    with pytest.raises(InputError, match="--group-size N"):
        requests_of(path)
    with pytest.raises(InputError, match="does not divide"):
        requests_of(path, group_size=3)


def test_a_folder_holds_less_than_is_read_at_once_and_a_file_a_row_at_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = '{"output_tokens": 5}'
    for name in ("1.jsonl", "2.jsonl"):
        (tmp_path / name).write_text(row)
    monkeypatch.setattr(reading, "TRACE_BYTES", 2 * len(row) + 1)
    assert requests_of(tmp_path).response.tolist() == [5, 5]
    monkeypatch.setattr(reading, "TRACE_BYTES", 2 * len(row))
    with pytest.raises(InputError, match="holds more than"):
        requests_of(tmp_path)
    monkeypatch.undo()
    (tmp_path / "t.csv").write_text("output_tokens\n")
    with pytest.raises(InputError, match="no rows; at least one length is needed"):
        requests_of(tmp_path / "t.csv", form=Format.CSV)


def test_parquet_reads_numbers_alone(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(
        {"response_length": [5, 6, 7], "prompt_tokens": [0, 2, 3], "uid": ["a", "a", "b"], "text": ["", "", ""]}
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    found = requests_of(tmp_path / "t.parquet")
    assert (found.response.tolist(), found.form) == ([5, 6, 7], "parquet")
    assert found.groups is not None and found.groups.tolist() == [0, 0, 1]
    with pytest.raises(InputError, match="holds string, no numbers"):
        requests_of(tmp_path / "t.parquet", column="text")
    with pytest.raises(InputError, match="no column 'nowhere'"):
        requests_of(tmp_path / "t.parquet", column="nowhere")
    parquet.write_table(pa.table({"prompt_id": ["a", "b"]}), tmp_path / "named.parquet")
    with pytest.raises(InputError, match="no numbers"):
        requests_of(tmp_path / "named.parquet", column="prompt_id")
    by_number = pa.table({"output_tokens": [5.0, 6.0, 7.0], "group": [4, 9, 4]})
    parquet.write_table(by_number, tmp_path / "n.parquet", row_group_size=1)
    groups = requests_of(tmp_path / "n.parquet").groups
    assert groups is not None and groups.tolist() == [0, 1, 0]
    parquet.write_table(pa.table({"output_tokens": [5, 6], "uid": ["a", None]}), tmp_path / "null.parquet")
    with pytest.raises(InputError, match="name the prompt of every sample"):
        requests_of(tmp_path / "null.parquet")
    parquet.write_table(pa.table({"output_tokens": [0, 0]}), tmp_path / "zeros.parquet")
    with pytest.raises(InputError, match="no length above 0"):
        requests_of(tmp_path / "zeros.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="no Parquet file that can be read"):
        requests_of(tmp_path / "cut.parquet")


# distributions


def test_a_censored_lognormal_is_found_again_and_quantiles_keep_the_mean_and_the_tail() -> None:
    free = np.exp(RNG.normal(7.0, 0.8, 20_000))
    cut = np.minimum(free, 2000.0)
    assert cap_of(cut) == 2000.0 and cap_of(free) is None
    fit = fit_lognormal(cut, cut == 2000.0)
    assert (fit.location, fit.log_sigma) == pytest.approx((7.0, 0.8), abs=0.03)
    assert fit.mean == pytest.approx(cut.mean(), rel=0.01)
    # Without censoring the same lengths tell of another distribution.
    assert fit_lognormal(cut, np.zeros(cut.size, dtype=bool)).log_sigma < 0.7
    tokens = np.rint(np.concatenate([np.exp(RNG.normal(5, 0.4, 9000)), np.exp(RNG.normal(8, 0.3, 1000))]))
    levels, values = quantile_table(tokens)
    drawn = np.interp((np.arange(100_000) + 0.5) / 100_000, levels, values)
    assert drawn.mean() == pytest.approx(tokens.mean(), rel=0.01)
    assert np.quantile(drawn, [0.5, 0.85, 0.95, 0.99]) == pytest.approx(
        np.quantile(tokens, [0.5, 0.85, 0.95, 0.99]), rel=0.01
    )


@pytest.mark.parametrize("rho", [0.0, 0.4, 0.9])
def test_what_rlsim_draws_with_a_correlation_has_that_correlation(rho: float) -> None:
    scenario = load_scenario(
        "quickstart",
        [f"workload.group_correlation={rho}", "workload.prompts_per_step=448", "workload.generations_per_prompt=8"],
    )
    batch = draw(scenario, 0).steps[0].rollouts[0].batch
    found = group_correlation(batch.response_tokens.astype(float), batch.group)
    assert found is not None and found.low <= found.value <= found.high
    assert found.value == pytest.approx(rho, abs=0.06)


def test_a_fragment_is_a_workload(tmp_path: Path) -> None:
    lengths = np.minimum(np.rint(np.exp(RNG.normal(6.5, 0.7, 4000))), 1900)
    rows = "".join(f"{n // 8},100,{length:.0f}\n" for n, length in enumerate(lengths))
    (tmp_path / "own.csv").write_text("prompt_id,prompt_tokens,output_tokens\n" + rows)
    answer = answer_of(tmp_path / "own.csv")
    assert answer.cap == 2000 and answer.truncated == pytest.approx(np.mean(lengths == 1900))
    section = yaml.safe_load(answer.fragment())["workload"]
    assert section["response_tokens"]["kind"] == "lognormal" and section["max_sequence_tokens"] == 2000
    assert section["prompt_tokens"] == {"kind": "constant", "tokens": 100}
    Workload.model_validate({"prompts_per_step": 4, "generations_per_prompt": 8, **section})
    words = [word.removeprefix("--set ").strip("'") for word in answer.settings()]
    assert load_scenario("quickstart", words).workload.max_sequence_tokens == 2000
    assert "\nor: --set 'workload.prompt_tokens=" in answer.text()


def test_quantiles_are_too_long_to_set_and_no_key_is_set_without_them(tmp_path: Path) -> None:
    lengths = np.rint(np.concatenate([RNG.uniform(50, 100, 500), RNG.uniform(3000, 9000, 500)]))
    (tmp_path / "own.csv").write_text("prompt_tokens,output_tokens\n" + "".join(f"90,{n:.0f}\n" for n in lengths))
    answer = answer_of(tmp_path / "own.csv")
    assert answer.settings() == [] and "kind: quantiles" in answer.fragment()
    assert "or: --set" not in answer.text() and answer.text().endswith("paste the fragment into a scenario's file.")


# the command


def test_the_command_writes_fragment_figures_and_picture_and_takes_metrics(run: Command, tmp_path: Path) -> None:
    lengths = np.rint(np.exp(RNG.normal(6, 0.5, 500)))
    (tmp_path / "own.csv").write_text("output_tokens\n" + "".join(f"{n:.0f}\n" for n in lengths))
    code, out, err = run("traces", tmp_path / "own.csv", "--out", tmp_path / "found")
    assert (code, err) == (0, "") and "response_tokens" in out
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"fragment.yaml", "trace.json", "lengths.png"}
    first = (tmp_path / "found" / "lengths.png").read_bytes()
    run("traces", tmp_path / "own.csv", "--out", tmp_path / "again")
    assert (tmp_path / "again" / "lengths.png").read_bytes() == first
    assert run("traces", tmp_path / "own.csv", "-o", tmp_path / "w.yaml")[0] == 0
    assert (tmp_path / "w.yaml").read_text() == (tmp_path / "found" / "fragment.yaml").read_text()
    code, out, _ = run("traces", tmp_path / "own.csv", "--json")
    assert json.loads(out)["samples"] == 500
    answer = read_acceptance(counters(1000, (730, 520, 360)), "m")
    words = [word.removeprefix("--set ").strip("'") for word in answer.settings()]
    found = load_scenario("qwen8b_rl_think", [*words, "speculation.method=eagle3"]).speculation
    assert found.position_acceptance == (0.73, 0.52, 0.36) and found.draft_length == 3
    (tmp_path / "metrics.txt").write_text(counters(1000, (730, 520, 360)))
    code, out, err = run("traces", tmp_path / "metrics.txt", "--out", tmp_path / "metrics")
    assert (code, err) == (0, "") and "position_acceptance: [0.73, 0.52, 0.36]" in out
    assert {path.name for path in (tmp_path / "metrics").iterdir()} == {"fragment.yaml", "trace.json"}


HOSTILE = {"pickle.csv": pickle.dumps({"a": 1}), "pickle0.csv": pickle.dumps({"a": 1}, protocol=0),
           "nan.csv": b"output_tokens\n5\nnan\n", "negative.csv": b"output_tokens\n5\n-3\n",
           "huge.jsonl": b'{"output_tokens": 1' + b"0" * 400 + b"}\n",
           "nested.jsonl": b'{"output_tokens": ' + b"[" * 100_000, "html.csv": b"<script>alert(1)</script>,b\n1,2\n",
           "wide.csv": b"output_tokens\n" + b"1" * 200_000 + b"\n", "empty.csv": b"",
           "zero.csv": b"output_tokens\n0\n0\n", "text.jsonl": b'{"output_tokens": "many"}\n',
           "verl.jsonl": b'{"input": "a", "output": "b"}\n{"input": "a", "output": 3}\n',
           "mask.jsonl": b'{"input_lengths": 3, "token_ids": [1, 2, 3], "token_loss_mask": [0, "x", 1]}\n',
           "parquet.parquet": b"PAR1" + b"\xff" * 64, "quantiles.csv": b"quantile,output_tokens\n0,1\n1,5\n",
           "long.jsonl": b'{"output_tokens": "' + b"x" * LINE_CHARACTERS + b'"}\n'}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_one_message(name: str, run: Command, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name])
    code, out, err = run("traces", tmp_path / name, "--out", tmp_path / "found")
    assert (code, out) == (2, "") and err.startswith("rlsim: ") and err.count("\n") == 1
    assert "\x1b" not in err and not (tmp_path / "found").exists()


def test_no_format_takes_a_folder_without_rollouts(run: Command, tmp_path: Path) -> None:
    assert run("traces", tmp_path)[0] == 2
    assert run("traces", tmp_path / "none.csv")[0] == 2
    assert set(Format) == {
        "auto",
        "csv",
        "jsonl",
        "parquet",
        "mooncake",
        "azure",
        "verl",
        "nemo-rl",
        "agents",
        "vllm-metrics",
    }


def counters(drafts: float, accepted: tuple[float, ...], engine: int = 0) -> str:
    label = f'engine="{engine}",model_name="m"'
    lines = [f"vllm:spec_decode_num_drafts_total{{{label}}} {drafts}"]
    lines.append(f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {drafts * len(accepted)}")
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{{{label},position="{place}"}} {value}' for place, value in enumerate(accepted)]
    return "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.\n" + "\n".join(lines) + "\n"


def test_counters_add_up_scrapes_are_subtracted_log_lines_weighed_and_rising_rates_lowered() -> None:
    # P_i of gpt-oss-120b with EAGLE-3, k=3, HumanEval (vLLM pull request 32628): .73 .52 .36.
    one = read_acceptance(counters(1000, (730, 520, 360)), "m")
    assert one.position_rates == (0.73, 0.52, 0.36) and one.acceptance_length == pytest.approx(2.61)
    two = read_acceptance(counters(1000, (730, 520, 360)) + counters(1000, (530, 320, 160), engine=1), "m")
    assert two.position_rates == (0.63, 0.42, 0.26) and two.verifications == 2000
    later = read_acceptance(counters(1000, (1, 1, 1)) + counters(3000, (1461, 1041, 721)), "m")
    assert later.position_rates == (0.73, 0.52, 0.36)
    line = (
        "INFO metrics.py: SpecDecoding metrics: Mean acceptance length: {al}, Accepted throughput: 1.0 tokens/s, "
        "Drafted throughput: 2.0 tokens/s, Accepted: {a} tokens, Drafted: {d} tokens, "
        "Per-position acceptance rate: {p}, Avg Draft acceptance rate: 50.0%\n"
    )
    text = line.format(al="2.20", a=120, d=200, p="0.800, 0.400") + line.format(
        al="1.60", a=180, d=600, p="0.400, 0.200"
    )
    found = read_acceptance(text, "log")
    assert found.position_rates == pytest.approx((0.5, 0.25)) and found.verifications == 400
    found = read_acceptance(counters(100, (50, 60)), "m")
    assert found.position_rates == (0.5, 0.5) and "lowered" in found.remarks[0]


@pytest.mark.parametrize("text", [
    counters(0, (0, 0)),
    counters(10, (20, 1)),
    counters(10, tuple([1.0] * 40)),
    "vllm:spec_decode_num_drafts_total 5\n",
    "vllm:spec_decode_num_drafts_total nan\n",
    "vllm:spec_decode_num_drafts_total -5\n",
    "SpecDecoding metrics: Mean acceptance length: 2.0\n",
    "SpecDecoding metrics: Mean acceptance length: 9.0, Drafted: 4 tokens, Per-position acceptance rate: 0.5\n",
    "SpecDecoding metrics: Drafted: 4 tokens, Per-position acceptance rate: 0.5\n"  # lines of two runs
    "SpecDecoding metrics: Drafted: 4 tokens, Per-position acceptance rate: 0.5, 0.25\n",
])  # fmt: skip
def test_counts_that_make_no_sense_are_one_message(text: str, run: Command, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_acceptance(text, "m")
    (tmp_path / "metrics.txt").write_text(text)
    code, out, err = run("traces", tmp_path / "metrics.txt")
    assert (code, out) == (2, "") and err.count("\n") == 1


def test_pairs_share_what_fisher_says_and_single_samples_nothing() -> None:
    """Of groups of two (between - within) / (between + within), mean squares; equal pairs share all, mirrored none."""
    rng = np.random.default_rng(3)
    pairs = rng.normal(size=(400, 1)) + rng.normal(size=(400, 2))

    def shared(values: np.ndarray) -> float:
        parts = np.full(len(values), 2.0), values.sum(axis=1), (values**2).sum(axis=1)
        return float(_share(*(part[None, :] for part in parts))[0])

    between, within = 2.0 * pairs.mean(axis=1).var(ddof=1), pairs.var(axis=1, ddof=1).mean()
    assert shared(pairs) == pytest.approx((between - within) / (between + within))
    assert shared(np.repeat(pairs[:, :1], 2, axis=1)) == pytest.approx(1.0)
    assert shared(np.stack((pairs[:, 0], -pairs[:, 0]), axis=1)) == 0.0
