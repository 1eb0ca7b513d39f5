"""A process beside the run answers, fails with a reason, and is gone at the end whatever it does."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from bench import ipc, isolated
from bench.cases import HANDED_OVER, Case
from bench.compiled import measure_compiled
from bench.timing import StopRule
from bench.workbench import UnsupportedError

CPU, BRIEF = torch.device("cpu"), StopRule(min_repeats=3, max_repeats=3, max_seconds=0.1)


def doubler() -> Callable[[object], object]:
    """Runs in the other process: doubles numbers, and does what words ask for."""

    def answer(message: object) -> object:
        if message == "fail":
            raise ValueError("no such kernel\nand more that nobody reads")
        if message == "die":
            os._exit(3)
        if message == "hang":
            time.sleep(600)
        if message == "who":
            return os.getpid()
        return 2 * message

    return answer


def nothing_is_left() -> bool:
    return not multiprocessing.active_children()


def test_answers_come_back_a_failure_is_its_first_line_and_a_process_that_hangs_ends_with_its_time() -> None:
    with isolated.serving(doubler, (), 120.0) as ask:
        assert ask(21) == 42
        with pytest.raises(UnsupportedError, match=r"^no such kernel$"):
            ask("fail")
        assert ask(4) == 8
        with pytest.raises(UnsupportedError, match="ended early"):
            ask("die")
    assert nothing_is_left()
    with pytest.raises(UnsupportedError, match=r"not done within 0\.5 s"), isolated.serving(doubler, (), 0.5) as ask:
        ask("hang")
    assert nothing_is_left()


PARENT = """
import sys
sys.path[:0] = {paths!r}
from bench import isolated
from test_isolated import doubler
if __name__ == "__main__":
    with isolated.serving(doubler, (), 120.0) as ask:
        print(ask("who"), flush=True)
        ask("hang")
"""


def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(paths=[str(Path(__file__).parent), str(Path(isolated.__file__).parents[1])]))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30.0
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(process: int) -> bool:
    """Whether the process runs; one that has ended and was not asked for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_weights_reach_another_process_tensor_by_tensor_and_packed() -> None:
    """Over shared memory, which a CPU's handles name; between GPUs' processes it is CUDA IPC."""
    known, cases = mp.get_sharing_strategy(), [weights(path) for path in ("tensors", "bucket")]
    mp.set_sharing_strategy("file_system")
    try:
        with isolated.serving(ipc.receiver, ("cpu",), 120.0) as ask:
            for case in cases:
                ask(case)
                assert ipc.hand_over(case, CPU, ask, BRIEF).seconds_median > 0
            with pytest.raises(UnsupportedError):
                ask("no handles")
    finally:
        mp.set_sharing_strategy(known)
    assert nothing_is_left()


def weights(path: str) -> Case:
    return Case(HANDED_OVER, {"bytes": 4096, "tensors": 4, "path": path})


@pytest.mark.parametrize("path", ["tensors", "bucket"])
def test_the_receiver_holds_what_was_handed_over(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [torch.zeros(2) for _ in range(3)]
    monkeypatch.setattr(ipc, "weight_tensors", lambda *_: held)
    answer = ipc.receiver("cpu")
    answer(weights(path))
    whole = torch.arange(6.0)
    sent = [whole] if path == "bucket" else list(whole.split(2))
    answer([((lambda one: one), (one,)) for one in sent])
    assert torch.equal(torch.cat(held), whole)


def test_a_record_comes_back_from_the_compilers_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    small = Case("rms_norm", {"rows": 2, "width": 8}, 1.0, 8.0)
    (record,) = measure_compiled([small], CPU, {}, BRIEF)
    assert record.case == small and record.sample is not None and record.seconds > 0
    assert nothing_is_left()
