"""The CPU path from end to end: measure, fit, and project a small model on what came out."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from bench.measurements import Metadata
from rlsim.calibration import cases
from rlsim.calibration.cases import CPU_QUICK
from rlsim.calibration.device_profile import LAUNCHES, DeviceRates, profile_of
from rlsim.cli.commands import app
from rlsim.costs.engine.prices import engine_prices
from rlsim.costs.operators import device
from rlsim.costs.prices import price
from rlsim.costs.trainer.training import step_cost
from rlsim.errors import InputError
from rlsim.files.reading import data_folder
from rlsim.loading.scenario import load_scenario
from rlsim.tables import operators as tables
from rlsim.tables.files import LAYOUTS, TableLayout, read_table, table_path
from rlsim.tables.operators import OperatorTables
from rlsim.workload.draw import draw

FEW = replace(
    CPU_QUICK, checked_layers=1, rows=(1, 8), batches=(1, 2), queries=(1, 2), contexts=(128,), prompts=((1, 64),),
    moe_tokens=(4,), train_tokens=(32,), copy_bytes=(65536, 2**23), message_bytes=(4096,), optimizer_parameters=(1024,),
    composites=((1, 0, 64), (2, 1, 64)), max_head_rows=8, peak_gemm=(256, 256, 256), budget_s=1.0,
)  # fmt: skip
HUGGINGFACE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 256,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 768, "vocab_size": 2048, "max_position_embeddings": 4096,
}  # fmt: skip
"""The dimensions of the model that a CPU measures, with a checkpoint's own file."""


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder that ``rlsim calibrate --device cpu --quick`` wrote, along very short axes."""
    monkeypatch.setattr(cases, "axes_for", lambda *_: FEW)
    told = CliRunner().invoke(app(), ["calibrate", "--device", "cpu", "--quick", "--out", str(tmp_path / "cpu")])
    assert told.exit_code == 0, told.output
    assert "self-check" in told.output
    return tmp_path / "cpu"


def test_a_profile_measured_on_this_machine_projects_a_small_model(calibrated: Path) -> None:
    folder = calibrated.parent
    (folder / "config.json").write_text(json.dumps(HUGGINGFACE))
    document = {
        "name": "tiny on this machine", "model": "config.json", "hardware": "cpu/cpu_local.yaml",
        "cluster": {"num_gpus": 2},
        "workload": {"prompts_per_step": 4, "generations_per_prompt": 4,
                     "prompt_tokens": {"kind": "constant", "tokens": 16},
                     "response_tokens": {"kind": "lognormal", "mean_tokens": 48, "log_sigma": 0.5},
                     "max_sequence_tokens": 128},
        "speculation": {"method": "eagle3", "draft_length": 1, "acceptance_length": 1.6},
        "simulation": {"replications": 2},
    }  # fmt: skip
    (folder / "scenario.yaml").write_text(yaml.safe_dump(document))
    told = CliRunner().invoke(app(), ["project", str(folder / "scenario.yaml"), "--json"])
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    assert answer["candidate"]["phases"]["generation_s"]["mean"] > 0
    assert answer["provenance"]["measured"] > 0
    stated = OperatorTables.load(str(calibrated / "cpu_local"), "vllm").metadata
    assert stated["self_check"]["composites"] == 2
    assert any("self-check error of the measured tables" in line for line in answer["assumptions"])


@pytest.mark.parametrize("rate", [4e5, 4e9])
def test_messages_that_a_busy_machine_held_up_are_no_link(rate: float) -> None:
    host = dict.fromkeys(LAUNCHES, 1e-6)
    rates = DeviceRates({"bf16": 1e11}, 2e10, None, rate, 5e-5, 1e-6, host, {}, {})
    metadata = Metadata("1", "quick", "2026-01-01", "a core", "cpu", 2, 10**10, "2", "a core", 10**10)
    link = profile_of("some_core", "none", rates, metadata).nvlink_bandwidth_bytes_per_s
    assert (link.value, link.source) == ((2e10, "assumed") if rate < 1e6 else (4e9, "measured"))
    assert ("4e+05 bytes/s" in link.ref) == (rate < 1e6)
    with pytest.raises(InputError, match="measured again"):
        profile_of("some_core", "none", replace(rates, memory_bytes_per_s=1e6), metadata)


SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
NO_SCENARIO_SHIPS = {"mla_decode": "a model with latent attention (DeepSeek-V3 has a model card)",
                     "mla_prefill": "the same", "mla_decode_kernel": "the same",
                     "mla_prefill_kernel": "the same, of an engine whose module was not measured (SGLang)",
                     "expert_exchange": "experts over several trays of one NVLink domain",
                     "sparse_decode": "a model with sparse attention (GLM-5 has a model card)",
                     "sparse_prefill": "the same"}  # fmt: skip
LATENT = (
    "model=deepseek-v3", "cluster.num_gpus=512", "engine.tensor_parallel=32", "engine.expert_parallel=32",
    "trainer.tensor_parallel=8", "trainer.pipeline_parallel=8", "trainer.expert_parallel=64",
)  # fmt: skip

SPARSE = ("model=glm-5", *LATENT[1:], "engine.gpu_memory_utilization=0.8")

WIDE = ("engine.tensor_parallel=16", "engine.expert_parallel=16", "engine.attention_data_parallel=16")


def opened(scenarios: list[tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    seen: set[str] = set()

    def reading(folder: Path, layout: TableLayout) -> object:
        if table_path(folder, layout).is_file():
            seen.add(layout.name)
        return read_table(folder, layout)

    monkeypatch.setattr(tables, "read_table", reading)
    for remembers in (device._device, engine_prices, step_cost):
        remembers.cache_clear()
    for name, changes in scenarios:
        scenario = load_scenario(name, changes)
        price(scenario, draw(scenario, 0))
    return seen


def test_every_shipped_table_is_read_or_listed_and_read_where_its_reason_says(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = {path.stem for path in data_folder("calibration").glob("tables/*/*/*.npz")}
    assert shipped <= {layout.name for layout in LAYOUTS}
    found = opened([(str(path), ()) for path in SCENARIOS], monkeypatch)
    assert shipped - found == set(NO_SCENARIO_SHIPS)
    changed = [
        ("quickstart", LATENT), ("quickstart", (*LATENT, "engine.name=sglang")), ("qwen235b_512", WIDE),
        ("quickstart", SPARSE),
    ]  # fmt: skip
    assert set(NO_SCENARIO_SHIPS) <= opened(changed, monkeypatch)
