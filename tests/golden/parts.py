"""What parts of the evidence make of hand-written input: curves, scores, pairs, repeated rows, tables that are none."""

import math
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from edges import KINDS, NAMED, digest, edges
from golden_tables import as_evidence, as_table, published
from measured_tables import ROW

from rlsim.errors import RlsimError
from rlsim.evidence import Kind, cross, joint
from rlsim.evidence.acceptance import DRIFT, SPECULATION, curves_of, fit_curves
from rlsim.evidence.compare import OwnTime, validate_table
from rlsim.evidence.iterations import speculation_pairs
from rlsim.evidence.loop import check
from rlsim.evidence.memory.rows import MEMORY
from rlsim.evidence.phases import seconds_of, spread
from rlsim.evidence.published import published_digest
from rlsim.evidence.rows import compare, first_line, named
from rlsim.evidence.shown import benchmark
from rlsim.evidence.steps import STEPS
from rlsim.evidence.tables import MAX_CELL_CHARACTERS, SkippedRow, Table, TableRow, kind_of, read_table, unit_slip
from rlsim.evidence.transfers import each_once
from rlsim.parameters.sets import shipped
from rlsim.projection.uncertainty.evidence import Evidence
from rlsim.results import Interval
from rlsim.results.loop_check import LoopRow, Pair
from rlsim.results.validation import ComparedRow


def told(call: Callable[[], Any]) -> Any:
    """What a call returns, or what its message names."""
    try:
        return call()
    except (SkippedRow, RlsimError) as reason:
        named_there = re.findall(NAMED, re.sub(r"\S*/", "", str(reason)))
        return f"refused_{'_'.join(named_there)}".replace(" ", "_")


CURVE = {
    "curve_kind": "acceptance_by_k",
    "series": "s",
    "x_name": "drafted",
    "y_name": "mean_acceptance_length",
    "unit": "tokens",
}
AT = {
    "acceptance_by_k": ("1", "65", "64", "0", "1.5", "2"),
    "draft_drift": ("0.5", "900"),
    "acceptance_by_position": ("1", "2", "65", "0.5"),
    "odd": ("1",),
}
BESIDE = ("1", "0.99", "2", "2.01", "1.01", "0", "65", "66", "-")


def odd_curves() -> Any:
    """Points at and beyond every bound beside two good ones; positions out of order, twice and with gaps."""
    found = []
    with tempfile.TemporaryDirectory() as folder:

        def of(rows: Sequence[dict[str, str]]) -> None:
            path = as_table(Path(folder), [{"id": str(n), **CURVE, **row} for n, row in enumerate(rows)])
            found.append(
                digest(
                    [
                        told(lambda: fit_curves(path).processes),
                        told(lambda: validate_table(path).rows),
                        told(lambda: curves_of(path, read_table(path, ()), DRIFT)),
                    ]
                )
            )

        for kind, places in AT.items():
            beside = ("1", "1.7"), ("2", "1.9")
            if kind == "acceptance_by_position":
                beside = ("1", "0.8"), ("2", "0.5")
            good = [{"curve_kind": kind, "series": "t", "x": x, "y": y} for x, y in beside]
            for x in places:
                for y in BESIDE:
                    of([*good, {"curve_kind": kind, "x": x, "y": y}])
        more = [{"x": str(k), "y": f"{1 + math.log(1 + k):.2f}"} for k in (1, 2, 3, 3, 5)]
        for rows in (more, more[:2], more[:1], [*more, {"x": "4", "y": "2", "series": ""}]):
            of(rows)
        of(
            [
                *more,
                {"x": "4", "y": "9", "y_name": "rate", "curve_kind": DRIFT},
                {"x": "4", "y": "2", "curve_kind": DRIFT},
            ]
        )
        shown = [{"curve_kind": "acceptance_by_position", "x": x, "y": y} for x, y in (("2", "0.5"), ("1", "0.8"))]
        for rows in (shown, [*shown, shown[0]], shown[:1], [*shown, {**shown[0], "x": "4"}]):
            of(rows)
    return found


def chosen_drafts() -> Any:
    """Draft lengths chosen of chains and trees, of speed-ups near and below 1."""
    rnd, found = random.Random(3), []
    for number in range(12):
        rows, records = [], []
        for n in range(1 + number):
            near = (1.0, 1.05, 1.06, 0.95, 0.94, 1.5, 0.7)
            rows.append(
                ComparedRow(
                    id=f"{n}",
                    measured=rnd.choice(near),
                    predicted=rnd.choice([*near, None]),
                    cuts=("k = 1", rnd.choice(("chains", "chains", "trees"))),
                )
            )
            records.append(TableRow(n, {"model": rnd.choice("ab"), "tp": rnd.choice(("", "1"))}))
        found.append(SPECULATION.extra_fields(Table("t", records), rows)["draft_lengths"])  # type: ignore[misc]
    return found


def scores() -> Any:
    """A file of predictions with blank, odd, one-sided and crossed intervals; sums by hand."""
    steps = [
        {"id": n, "total_step_time_s": t, "model": m, "gpu": "h100", "num_gpus": "8"}
        for n, t, m in (
            ("a", "10", "m"),
            ("b", "20", "m"),
            ("c", "", "m"),
            ("d", "40", "n"),
            ("e", "50", "n"),
            ("f", "60", "o"),
            ("g", "0", "o"),
        )
    ]
    intervals = ("", ""), ("9", "30"), ("0", "30"), ("30", "9"), ("12", "12"), ("20", "40"), ("10", "20"), ("5", "")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = as_table(Path(folder), steps).rename(Path(folder, "steps.csv"))
        for names in ("ab", "abdef", "ac", "f", "g", "az", ""):
            for low, high in intervals:
                for column in ("predicted_s", "predicted"):
                    rows = [
                        {"id": n, column: f"{8 + 17 * k % 50}", "low_s": low, "high_s": high}
                        for k, n in enumerate(names)
                    ]
                    ours = as_table(Path(folder), rows or [{"id": "", column: ""}])
                    found.append(told(lambda ours=ours: benchmark.score(ours, path)))
        zero = as_table(Path(folder), [{"id": "a", "predicted_s": "0"}])
        found.append(told(lambda: benchmark.score(zero, path)))
    answers = [
        ({"model": m}, t, p)
        for m, t, p in (("a", 5.0, 4.0), ("a", 4.0, 5.0), ("b", 9.0, 1.0), ("c", 3.0, 2.0), ("c", 2.0, 2.0))
    ]
    return [
        *found,
        benchmark.regret(answers),
        benchmark.regret(answers[:1]),
        [benchmark.crps(error, away) for error in (-0.4, 0.0, 0.2) for away in (0.0, 0.1, 0.7)],
        [benchmark.billions(name) for name in ("Qwen3-30B-A3B", "x-7.5B", "none", "1B-A0.5B")],
    ]


def repeated() -> Any:
    """Transfers of which some were measured once and published twice, or are objected to somewhere."""
    rnd = random.Random(5)
    rows = [
        ComparedRow(
            id=f"{n}",
            group=rnd.choice(("nemo, nccl", "verl, nccl")),
            measured=rnd.choice((4.0, 4.03, 4.2, 0.0, None)),
            predicted=rnd.choice((3.0, 3.0, 3.0, None)),
            skipped=rnd.choice((None, None, None, None, "flag odd", "other")),
            details={"model": rnd.choice(("a/M", "m", "n")), "gen_gpus": rnd.choice(("8", "16"))},
        )
        for n in range(60)
    ]
    times = [
        Evidence(
            rnd.choice(("transfer", "refit", "step")),
            f"{n}",
            0.1,
            {},
            {},
            {
                "model": rnd.choice("ab"),
                "device": rnd.choice(("h100_sxm", "H100")),
                "measured_s": rnd.choice((2.0, 2.5)),
            },
        )
        for n in range(20)
    ]
    return [list(each_once(rows)), [row.id for row in joint.counted_once(times)]]


def paired() -> Any:
    """Speculating rows of several releases and sources with plain ones to choose from."""
    rnd, rows, cells = random.Random(7), [], []
    for n in range(80):
        times = {
            "tpot_measured_ms": rnd.choice((8.0, 10.0, 10.4, None)),
            "tpot_predicted_ms": rnd.choice((9.0, 10.0, 12.0, 0.0)),
        }
        rows.append(ComparedRow(id=f"{n}", details={"speculative": n % 3 == 0, "batch": n, **times}))
        cells.append(
            {
                "model": rnd.choice("ab"),
                "tp": rnd.choice(("", "1")),
                "source": rnd.choice("xyz"),
                "engine_version": rnd.choice(("0.5.9", "0.5.10", "v0.6.0", "0.6.0.post1", "", "main", "1.2", "10")),
            }
        )
    return [speculation_pairs(rows, cells).model_dump(), speculation_pairs(rows[:1], cells[:1])]


def odd_tables() -> Any:
    """Texts that are no table, or tables of no kind; rows with other numbers of cells, long ones and repeated ids."""
    steps = "id,model,gpu,num_gpus,on_off_policy,prompts_per_step,generations_per_prompt,max_seq_len,avg_seq_len"
    texts = (
        "",
        "\n",
        ",,\n1,2,3\n",
        "a,a\n1,2\n",
        "a,b,b,a\n",
        "id\n",
        steps,
        f"{steps}\na\n",
        f"{steps},total_step_time\n",
        "id,model,draft,gpu,engine,batch_or_concurrency,k,acceptance_length,ar\n1\n",
        "series,x,y\n",
        "quantity\n1\n",
        'a,b\n"1,2\n',
        f"a,b\n{'x' * 100_001}\n",
        f"a,b\n{'x' * 99_999}\n",
        "a,b\n" + "1,2\n" * 10_001,
        "a,b\n1,2\n\n ,\n3\n4,5,6\n",
        f"id,b\n{'x' * (MAX_CELL_CHARACTERS + 1)},1\ny,{'x' * MAX_CELL_CHARACTERS}\n",
        "id,flag\na,\na,\n,odd\nb,parallelism_corrected\n",
    )
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        for text in texts:
            path.write_text(text, encoding="utf-8")
            read = told(
                lambda: [
                    [row.line, sorted(row.cells)[:3], len(row.problem), row.problem[:30]]
                    for row in read_table(path, ())[:9]
                ]
            )
            found.append(
                [
                    read,
                    told(lambda: kind_of(path)),
                    told(lambda: read_table(path, ("id", "colour"))[0]),
                    told(lambda: named(Table.read(path))[:9]),
                    told(lambda: Table.read(path, Kind.MEMORY).digest),
                ]
            )
    ratios = ((), (20.0, 20.0), (20.1,), (0.05,), (0.049,), (1000.0, 1000.0, 1.0), (0.001, 900.0, 0.002))
    columns = (
        {"tpot_ms": "1"},
        {"decode_step_ms_est": "1"},
        {"time_s": "2"},
        {"refit_s": "1", "time_s": ""},
        {"y": "1"},
    )
    kinds = Kind.ITERATIONS, Kind.ITERATIONS, Kind.TRANSFERS, Kind.TRANSFERS, Kind.CURVES
    slips = [
        unit_slip(kind, Table("t", [TableRow(1, row)]), each)
        for kind, row in zip(kinds, columns, strict=True)
        for each in ratios
    ]
    return [
        found,
        [[slip, slip.rpartition(":")[2].replace(" ", "_")] for slip in slips],
        first_line(""),
        first_line("a\nb"),
    ]


def loop_rows() -> Any:
    """Rows of the loop: merged rounds, speed-ups, and the phase that a miss comes from."""
    rnd, found = random.Random(11), []
    for n in range(24):
        rows = [
            LoopRow(
                name=f"{n}",
                measured_s=10.0,
                predicted_s=rnd.choice((9.0, 9.01, 11.0, 10.99, 6.0, 15.0)),
                interval=(8.0, 12.0),
                phases={
                    name: Pair(measured_s=rnd.choice((3.0, 5.0)), predicted_s=rnd.choice((3.0, 4.0, 7.0)))
                    for name in ("generation_s", "train_s")
                },
                idle={"trainer": Pair(measured_s=1.0 + k, predicted_s=2.0)},
                steps_s=(9.0 + k, 11.0),
                tokens_per_verification=(2.0 + k, 2.5),
                undisturbed_s=9.0 + k,
                steal_s=rnd.choice((0.0, 0.5)),
                others_cpu_s=rnd.choice((0.5, 1.0, 0.7)),
                pace=1.0 + n / 10 + k,
                settings={},
            )
            for k in (0, 1)
        ]
        one = check._merged(rows)
        found += [one, check._with_speedup(rows[0], rows[1]), check._with_speedup(one, None)]
    return [[row, row.why.partition(" took ")[0], " more " in row.why, "hypervisor" in row.why] for row in found]


def scored_draws() -> Any:
    """Scores of draws by hand, pairs of runs, newest releases and tenths of runs."""
    values, draws = np.array([0.1, -0.3, 0.5, 0.0]), np.random.default_rng(2).normal(0.05, 0.2, (4, 200))
    about = [{"engine": "vllm", "release": r} for r in ("0.17", "0.16.9", "", "0.18.0", "v1")] + [
        {"framework": "nemo_rl", "release": "0.7"}
    ]
    rows = [
        Evidence(kind, f"r{n}", 0.1, {}, {"engine setup: a": 1.0} if n % 2 else {}, one)
        for n, one in enumerate(about)
        for kind in ("iteration",)
    ]
    more = [
        Evidence(kind, "m", 0.1, {}, {}, {"engine": "sglang", "framework": "verl"})
        for kind in ("iteration", "training", "transfer", "step")
    ]
    return [
        cross._scores(values, draws, np.array([0.1, 0.2, 0.3, 0.4])),
        cross._interval_score(values, values - 0.1, values - 0.05),
        [cross._pairs([f"{n}" for n in range(count)]) for count in (2, 4, 5, 24, 25)],
        [[cross._newest(row), cross._fold(row)] for row in rows],
        [cross.single_factor(row, shipped()) for row in more],
    ]


def _own_times() -> Iterator[bool]:
    for measured in (9.0, 9.1, 11.0, 11.1, 10.0):
        for tail in (0.019, 0.02, 0.5):
            remark = OwnTime("a", "step", measured, Interval(10, 9, 11), Interval(10, 9.1, 11.0), tail).remark
            yield f"{len(remark)}"


def odds() -> Any:
    """Remarks on times, refusals of a fit, seconds of rows, progress, verdicts."""
    claims = [
        told(lambda real=real, kind=kind: joint._must_hold({kind: real}, {"step": 0.1}))
        for real in (0.11, 0.112, 0.1121, 0.5)
        for kind in ("step", "train", "iteration")
    ]
    seconds = seconds_of([{"a": cell} for cell in ("", "0", "1.5", "-", "2")], "a")
    said: list[int] = []
    table = Table("t", [TableRow(n, {"id": f"{n}"}) for n in range(7)], progress=lambda done, of: said.append(done))
    skipped = compare(table, STEPS, lambda row: (_ for _ in ()).throw(SkippedRow("no\nhint")))
    verdicts = [{**row, "kind": "fits"} for row in published("memory/rows") if row["kind"] == "fits"]
    found = MEMORY.extra_fields(Table("t", [TableRow(1, row) for row in verdicts]), ())  # type: ignore[misc]
    usable = [
        joint._as_it_says(
            SimpleNamespace(
                predicted=p,
                measured=m,
                details={"measured_step": step, "acceptance_length": 2.0, "step_predicted_ms": 10.0},
            )
        )
        for p in (None, 9.0)
        for m in (None, 5.0, 4.99, 2.5, 2.49)
        for step in (True, False)
    ]  # type: ignore[arg-type]
    return [
        list(_own_times()),
        claims,
        seconds,
        spread([1.0, 2.0, 4.0, 9.0]),
        said,
        skipped,
        found,
        usable,
        published_digest() != "",
    ]


LAGGED = {"on_off_policy": "async lag 1", "generation_s": "9", "train_s": "3"}
PARTS: dict[str, Callable[[], Any]] = {
    **{f"rows of {kind}": partial(edges, kind) for kind in KINDS},
    "odd curves": odd_curves,
    "chosen drafts": chosen_drafts,
    "scores of predictions": scores,
    "repeated measurements": repeated,
    "pairs of drafts": paired,
    "odd tables": odd_tables,
    "rows of the loop": loop_rows,
    "scores of draws": scored_draws,
    "odds and ends": odds,
    "steps as evidence": lambda: as_evidence([ROW, {**ROW, "id": "lagged", "num_gpus": "16", **LAGGED}]),
}
