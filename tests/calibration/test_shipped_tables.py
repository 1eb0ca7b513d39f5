"""Every shipped table is read by a scenario that ships, or is listed here with the reason why it is not."""

from pathlib import Path

import pytest

from rlsim.costs.engine.prices import engine_prices
from rlsim.costs.operators import device
from rlsim.costs.prices import price
from rlsim.costs.trainer.training import step_cost
from rlsim.files.reading import data_folder
from rlsim.loading.scenario import load_scenario
from rlsim.tables import operators as tables
from rlsim.tables.files import LAYOUTS, TableLayout, read_table, table_path
from rlsim.workload.draw import draw

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
NO_SCENARIO_SHIPS = {
    "mla_decode": "a model with latent attention (DeepSeek-V3 has a model card)",
    "mla_prefill": "the same",
    "mla_decode_kernel": "the same",
    "mla_prefill_kernel": "the same, of an engine whose module was not measured (SGLang)",
    "expert_exchange": "experts over several trays of one NVLink domain",
    "sparse_decode": "a model with sparse attention (GLM-5 has a model card)",
    "sparse_prefill": "the same",
}
LATENT = (
    "model=deepseek-v3", "cluster.num_gpus=512", "engine.tensor_parallel=32", "engine.expert_parallel=32",
    "trainer.tensor_parallel=8", "trainer.pipeline_parallel=8", "trainer.expert_parallel=64",
)  # fmt: skip

SPARSE = ("model=glm-5", *LATENT[1:])

WIDE = ("engine.tensor_parallel=16", "engine.expert_parallel=16", "engine.attention_data_parallel=16")


def opened(scenarios: list[tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    seen: set[str] = set()

    def reading(folder: Path, layout: TableLayout) -> object:
        if table_path(folder, layout).is_file():
            seen.add(layout.name)
        return read_table(folder, layout)

    monkeypatch.setattr(tables, "read_table", reading)
    for kept in (device._device, engine_prices, step_cost):
        kept.cache_clear()
    for name, changes in scenarios:
        scenario = load_scenario(name, changes)
        price(scenario, draw(scenario, 0))
    return seen


def test_every_shipped_table_is_read_or_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = {path.stem for path in data_folder("calibration").glob("tables/*/*/*.npz")}
    assert shipped <= {layout.name for layout in LAYOUTS}
    found = opened([(str(path), ()) for path in SCENARIOS], monkeypatch)
    assert shipped - found == set(NO_SCENARIO_SHIPS)


def test_what_no_scenario_reads_is_read_where_its_reason_says(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [
        ("quickstart", LATENT), ("quickstart", (*LATENT, "engine.name=sglang")), ("qwen235b_512", WIDE),
        ("quickstart", SPARSE),
    ]  # fmt: skip
    assert set(NO_SCENARIO_SHIPS) <= opened(changed, monkeypatch)
