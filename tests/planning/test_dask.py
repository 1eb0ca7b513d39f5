"""The executor interface: a Dask cluster gives what local processes give."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.planning import sweep
from rlsim.planning.execution import executor
from rlsim.schema.scenario import Scenario


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dask.distributed import LocalCluster

        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            yield cluster.scheduler_address


def test_a_sweep_on_dask_gives_the_same_bytes(tiny: Scenario, tmp_path: Path, address: str) -> None:
    axes = ["speculation.draft_length=1:4", "engine.tensor_parallel=1,2,3"]
    sweep(tiny, axes, out=tmp_path / "local")
    sweep(tiny, axes, jobs=address, out=tmp_path / "dask")
    for name in ("results.csv", "results.parquet", "lines.png"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "dask" / name).read_bytes()


def test_an_address_without_a_scheduler_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask import distributed

    def refuse(*args: object, **named: object) -> None:
        raise OSError("nobody there")

    monkeypatch.setattr(distributed, "Client", refuse)
    with (
        pytest.raises(InputError, match=r"--dask tcp://127.0.0.1:9: no scheduler answers there"),
        executor("tcp://127.0.0.1:9"),
    ):
        pass
