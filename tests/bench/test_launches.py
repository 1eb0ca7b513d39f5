"""Kernels are counted, modes of a GPU are refused elsewhere, and what may hang costs the other cases nothing."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from virtual_gpu import virtual_gpu

from bench import launches, recording, run, steps, training
from bench.cases import COMPILED, HANDED_OVER, Case, CaseList, ModelDims
from bench.drafting import _Passes
from bench.launches import kernel_count
from bench.measurements import Facts, Measurement, Sample, measurement_from
from bench.operators import prepare
from bench.speculation import Sampling, propose, random_draft_head, random_state, random_target
from bench.timing import StopRule, Watch
from bench.transformer import cache_capacity
from bench.workbench import UnsupportedError, Workbench

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
DIMS = ModelDims(64, 4, 2, 16, 96, 128, layers=2, draft_width=64, draft_vocabulary=32)
ITERATION = {"model": "m", "layers": 1, "batch": 1, "context": 8}


def test_kernels_are_the_nodes_of_a_graph_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_gpu() as gpu:
        x = torch.zeros(4, 4, device=GPU)

        def call() -> None:
            x.add_(1.0)
            x.t().mul_(x)

        before = gpu.kernels
        call()
        once = gpu.kernels - before
        assert kernel_count(call, GPU) == once == 2
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
        assert kernel_count(call, GPU) is None, "a torch that keeps no graph tells nothing"
    answers = [0]

    def nodes(graph: object, array: object, count: object) -> int:
        assert graph.value == 77 and array is None
        count._obj.value = 12
        return answers[-1]

    monkeypatch.setattr(launches.ctypes, "CDLL", lambda _: SimpleNamespace(cuGraphGetNodes=nodes))
    graph = SimpleNamespace(raw_cuda_graph=lambda: 77)
    assert launches.graph_nodes(graph) == 12
    answers.append(1)
    assert launches.graph_nodes(graph) is None, "the driver refuses"


@pytest.mark.parametrize(("op", "params"), [
    ("launch_chain", {"elements": 1, "mode": "graph"}),
    ("depth_iteration", {**ITERATION, "mode": "graph"}),
    ("depth_iteration", {**ITERATION, "mode": COMPILED}),
    ("draft_passes", {**ITERATION, "draft_length": 2, "mode": "one_graph"}),
    ("draft_passes", {**ITERATION, "draft_length": 2, "mode": "graph_each"}),
    ("layer_forward_backward", {"model": "m", "tokens": 8, "mode": "graph"}),
    ("host_weight_copy", {"bytes": 64, "tensors": 2, "memory": "pinned", "direction": "to_host"}),
])  # fmt: skip
def test_a_cpu_refuses_what_only_a_gpu_has(op: str, params: dict[str, int | str]) -> None:
    with pytest.raises(UnsupportedError, match="a CPU"):
        prepare(Case(op, params), Workbench(CPU, {"m": DIMS}))


def test_passes_one_by_one_draft_what_a_step_proposes() -> None:
    generator = torch.Generator().manual_seed(1)
    target = random_target(DIMS, CPU, torch.float32, generator)
    head = random_draft_head(DIMS, CPU, torch.float32, generator)
    state = random_state(target, 3, 20, 4, cache_capacity(25))
    torch.manual_seed(5)
    proposed = propose(head, target, state, 4, Sampling(), ("sdpa_masked", "sdpa_masked")).tokens
    passes = _Passes(head, target, state, "sdpa_masked", torch.zeros(3, 1, 64), torch.zeros(3, dtype=torch.long))
    torch.manual_seed(5)
    drafted = []
    for call in passes.calls(4):
        call()
        drafted.append(passes.token.clone())
    assert torch.equal(torch.stack(drafted, 1), proposed)


@pytest.mark.parametrize("path", ["tensors", "foreach", "bucket"])
def test_every_path_copies_all_weights(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[torch.Tensor]] = []

    def tensors(case: Case, *_: object) -> list[torch.Tensor]:
        made.append([torch.full((4,), float(len(made) == 0)) for _ in range(case.number("tensors"))])
        return made[-1]

    monkeypatch.setattr("bench.weights.weight_tensors", tensors)
    (call,) = prepare(Case("weight_copy", {"bytes": 64, "tensors": 3, "path": path}), Workbench(CPU)).calls
    call()
    assert torch.stack(made[1]).eq(1.0).all()


def compiled(*depths: int) -> list[Case]:
    return [Case("depth_iteration", {**ITERATION, "layers": depth, "mode": COMPILED}) for depth in depths]


def test_a_compiler_that_fails_is_a_reason_and_each_depth_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_gpu():
        resets: list[int] = []
        monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1))
        on = Workbench(GPU, {"m": DIMS})
        rule = StopRule(max_seconds=0.01)
        done = [recording.record_of(case, on, Watch(GPU), rule) for case in compiled(1, 2)]
        kernels = [record.facts.kernels for record in done]
        assert len(resets) == 2 and kernels[0] < kernels[1]
        assert all(record.facts.host_s > 0 for record in done)

        def broken(*_: object) -> object:
            raise AssertionError("no Triton\nsecond line")

        monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
        assert recording.record_of(compiled(1)[0], on, Watch(GPU), rule).unsupported == (
            "torch.compile does not work here: no Triton"
        )


SMALL = Case("rms_norm", {"rows": 2, "width": 8}, 1.0, 8.0)


def test_isolated_cases_take_nothing_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [*compiled(1, 2, 3), Case(HANDED_OVER, {"bytes": 64, "tensors": 1, "path": "bucket"}), SMALL]
    wanted = CaseList("isolated", 1.0, 0.03, {"m": DIMS}, cases)
    now = [0.0]
    shares: list[float] = []

    def slow_compiler(own: Sequence[Case], *_: object) -> Iterator[Measurement]:
        now[0] += 1000.0
        yield Measurement(own[0], Sample(1.0, 1.0, 1.0, 3, 0.0))
        raise UnsupportedError("not done within 60 s")

    def recorded(case: Case, on: Workbench, watch: Watch, rule: StopRule) -> Measurement:
        shares.append(rule.max_seconds)
        return Measurement(case, Sample(1.0, 1.0, 1.0, 3, 0.0))

    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(run, "measure_compiled", slow_compiler)
    monkeypatch.setattr(run, "record_of", recorded)
    report = run.run(wanted, "cpu", tmp_path, progress=False)
    reasons = ["", "not done within 60 s", "not done within 60 s", "a CPU has no CUDA IPC", ""]
    assert [record.unsupported for record in report.whole.records] == reasons
    assert shares == [pytest.approx(1.0 / len(cases))], "the budget is that of the cases that are left"
    assert run.run(wanted, "cpu", tmp_path, progress=False).measured_now == 0


def test_what_does_not_fit_into_memory_is_told_and_no_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with virtual_gpu():
        on = Workbench(GPU, {"m": DIMS})
        layer = Case("layer_forward_backward", {"model": "m", "tokens": 8, "mode": "graph"})
        with monkeypatch.context() as patched:
            patched.setattr(training, "random_layer", full)
            assert recording.record_of(layer, on, Watch(GPU), StopRule()).unsupported == "not enough device memory"
        assert recording.record_of(layer, on, Watch(GPU), StopRule(max_seconds=0.01)).sample
    with pytest.raises(torch.OutOfMemoryError):
        steps._compile_now(full)


def test_records_of_before_and_after_these_facts_can_be_read() -> None:
    new = Measurement(SMALL, Sample(1.0, 1.0, 1.0, 3, 0.0), facts=Facts(kernels=7, host_s=2.0))
    content = new.as_json()
    assert measurement_from(content) == new
    facts = content["facts"]
    for name in ("kernels", "host_s"):
        del facts[name]
    assert measurement_from(content).facts.kernels is None
    facts["what_a_later_release_adds"] = 1
    assert measurement_from(content).facts.host_s is None
