"""A machine as the host of engines: what is counted, read and computed of it; no test asserts on wall time."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlsim.calibration import host
from rlsim.calibration.host import REFERENCE_ROUND_S, engine_processes, host_speed, processor, usable_cores
from rlsim.calibration.host_rounds import Rounds, Scheduler, measured_rounds, of_times
from rlsim.cli.calibrate import app
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.report.text.host import host_section, ratio_text
from rlsim.results.host import HostSpeed

ALONE = Rounds(count=1000, p50_s=2 * REFERENCE_ROUND_S, p99_s=3 * REFERENCE_ROUND_S, waited_share=0.0)


def speed(cores: float = 24, processes: int = 24, beside: Rounds = ALONE, virtual: bool = False) -> HostSpeed:
    return host_speed(cores, processes, ALONE, [beside] * 2, virtual)


@pytest.mark.parametrize(("gpus", "engine_gpus", "processes"), [(8, 1, 24), (8, 8, 10), (8, 2, 16), (1, 1, 3)])
def test_an_engine_has_a_server_a_core_and_a_worker_for_each_gpu(gpus: int, engine_gpus: int, processes: int) -> None:
    assert engine_processes(gpus, engine_gpus) == processes


def test_engines_that_do_not_fill_a_node_are_refused() -> None:
    with pytest.raises(InputError, match=r"--engine-gpus 3: must divide --gpus \(8\)"):
        engine_processes(8, 3)


def test_a_slowdown_is_the_product_of_thread_neighbours_and_processes_a_core() -> None:
    slow = Rounds(1000, 1.5 * ALONE.p50_s, ALONE.p99_s, waited_share=0.5)
    found = speed(cores=6, beside=slow)
    assert (found.single, found.busy, found.share) == pytest.approx((2.0, 3.0, 4.0))
    assert found.slowdown == pytest.approx(24.0)
    assert found.jitter == pytest.approx(1.5)


def test_neighbours_and_free_cores_speed_nothing_up() -> None:
    fast = Rounds(1000, 0.5 * ALONE.p50_s, ALONE.p99_s, 0.0)
    assert speed(cores=96, beside=fast).slowdown == pytest.approx(2.0)


@pytest.mark.parametrize(("cores", "slower", "virtual", "expected"), [
    (24, 1.0, False, "server"), (24, 1.0, True, "rented"), (24, 1.3, True, "shared"), (23.5, 1.0, False, "few_cores"),
])  # fmt: skip
def test_the_class_follows_from_what_was_found(cores: float, slower: float, virtual: bool, expected: str) -> None:
    beside = Rounds(1000, slower * ALONE.p50_s, ALONE.p99_s, 0.0)
    assert speed(cores, beside=beside, virtual=virtual).host == expected


def test_a_thread_that_waits_alone_shares_its_processor() -> None:
    waiting = Rounds(1000, ALONE.p50_s, ALONE.p99_s, waited_share=0.2)
    found = host_speed(24, 24, waiting, [waiting], False)
    assert found.host == "shared" and "20%" in found.reason


@pytest.mark.parametrize(("group", "files", "cores"), [
    ("0::/a/b", {"sys/fs/cgroup/a/cpu.max": "150000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 1.5),
    ("0::/outside", {"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
    ("3:cpu,cpuacct:/x", {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "25000", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us":
     "100000"}, 0.25),
    ("3:cpu:/x", {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000"},
     None),
    ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000"}, None), ("0::/", {"sys/fs/cgroup/cpu.max": "1 0"}, None),
    ("nonsense", {}, None),
])  # fmt: skip
def test_the_tightest_quota_above_a_process_bounds_its_cores(
    tmp_path: Path, group: str, files: dict[str, str], cores: float | None
) -> None:
    for name, text in {"proc/self/cgroup": group, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert usable_cores(tmp_path) == (allowed if cores is None else min(cores, allowed or 1))


def test_a_processor_is_named_and_a_hypervisor_seen(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    info = tmp_path / "proc/cpuinfo"
    info.write_text("model name\t: Some CPU\nflags\t\t: fpu hypervisor avx\n")
    assert processor(tmp_path) == ("Some CPU", True)
    info.write_text("model name\t: Some CPU\nflags\t\t: fpu avx\n")
    assert processor(tmp_path) == ("Some CPU", False)
    assert processor(tmp_path / "absent")[1] is False


def test_percentiles_are_by_nearest_rank() -> None:
    found = of_times([float(number) for number in range(200, 0, -1)], 0.1)
    assert (found.count, found.p50_s, found.p99_s, found.waited_share) == (200, 100.0, 198.0, 0.1)


def test_a_round_schedules_a_token_of_every_request_and_ends_as_many_each_time() -> None:
    scheduler = Scheduler()
    prompts = sum(one.tokens for one in scheduler.running)
    assert scheduler.step() == prompts
    blocks = len(scheduler.free) + sum(len(one.blocks) for one in scheduler.running)
    for _ in range(300):
        before = [len(one.output_tokens) for one in scheduler.running]
        scheduled = scheduler.step()
        begun = [one for one, tokens in zip(scheduler.running, before, strict=True) if tokens == 0]
        assert len(begun) == 2  # 256 requests, each of 128 tokens
        assert scheduled == 254 + sum(one.prompt_tokens for one in begun)
        assert len(scheduler.free) + sum(len(one.blocks) for one in scheduler.running) == blocks


def test_a_measurement_is_of_processes_of_its_own() -> None:
    assert measured_rounds(0.05).count > 0
    found = host.measure_host(2, 2, alone_s=0.05, beside_s=0.05)
    assert found.processes == 4 and found.beside == min(4, max(1, int(found.cores))) and found.slowdown > 0
    assert found.slowdown == pytest.approx(found.single * found.busy * found.share)


def test_a_process_that_fails_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("print('ready')\n")
    monkeypatch.setattr(host.host_rounds, "__file__", str(tmp_path / "broken.py"))
    with pytest.raises(InputError, match="calibrate host: a process that measures"):
        host.rounds_beside(1, 0.01)


def test_the_written_section_is_one_of_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text("extends: quickstart\nname: here\n" + host_section(speed(cores=6)))
    assert load_scenario(str(path)).engine.host_slowdown == pytest.approx(8.0)


def test_two_hosts_are_compared_without_the_reference(tmp_path: Path) -> None:
    assert "0.25 times as long" in ratio_text(speed(), speed(cores=6))
    kept = tmp_path / "other.json"
    kept.write_text(speed().to_json())
    assert HostSpeed.read(kept) == HostSpeed.model_validate(speed().as_dict())


@pytest.mark.parametrize(("words", "naming"), [
    (["--out", "host.txt"], "must end in .yaml"), (["--over", "absent.json"], "absent.json"),
    (["--gpus", "8", "--engine-gpus", "3"], "must divide --gpus (8)"),
])  # fmt: skip
def test_a_wrong_word_is_refused_before_anything_is_measured(words: list[str], naming: str) -> None:
    result = CliRunner().invoke(app, ["host", *words])
    assert result.exit_code != 0 and naming in str(result.exception)
