"""Hardware profiles: what ships, and what a profile refuses."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from rlsim.costs.operators.device import DATASHEET_ERROR, device_of
from rlsim.costs.operators.work import Matrix
from rlsim.errors import InputError
from rlsim.loading.models import list_cards, load_card
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.schema.base import changed
from rlsim.schema.hardware import HardwareProfile, SourcedValue
from rlsim.tables.new_profile import Datasheet, write_profile
from rlsim.tables.profile import list_profiles, load_profile, profile_called


def _quantities(profile: HardwareProfile) -> dict[str, SourcedValue]:
    values = {name: getattr(profile, name) for name in type(profile).model_fields}
    return {name: value for name, value in values.items() if isinstance(value, SourcedValue)}


@pytest.mark.parametrize("name", list_profiles())
def test_a_profile_is_plausible_every_number_names_its_origin_and_says_where_it_is_from_memory(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    # Ridge points of the last three generations: 100 to 400 BF16 FLOP per byte of memory traffic.
    if name in ("h20_sxm", "h20_3e"):  # made to have little arithmetic
        assert 30 < profile.flops("bf16") / float(profile.memory_bandwidth_bytes_per_s) < 40
    elif name not in ("l40s", "tpu_v6e", "dgx_spark"):  # 419 to 560: little bandwidth
        assert 100 < profile.flops("bf16") / float(profile.memory_bandwidth_bytes_per_s) < 400
    # Links are slower the farther they reach.
    links = [profile.memory_bandwidth_bytes_per_s, profile.nvlink_bandwidth_bytes_per_s]
    links.append(profile.network_bandwidth_bytes_per_s)
    assert sorted(map(float, links), reverse=True) == [float(link) for link in links]
    assert 1e-6 < float(profile.nvlink_latency_s) < float(profile.eager_launch_s) < 1e-4
    assert 24e9 < float(profile.memory_bytes) < 400e9
    profile = load_profile(name)
    quantities = _quantities(profile)
    assert len(quantities) >= 16
    measured = {key for key, value in quantities.items() if value.source == "measured"}
    own = profile.operator_tables == name
    assert ({"eager_launch_s", "nvlink_latency_s"} <= measured) is own
    assert all("parquet" in quantities[key].ref for key in ("eager_launch_s", "nvlink_latency_s"))
    price = quantities["price_per_gpu_hour_usd"]
    assert price.source == "assumed"
    assert re.search(r"20\d\d-\d\d", price.ref)
    # Sources of datasheet profiles: a document, or the words that warn of a figure from memory.
    if name == "vr200_nvl72":
        assert all(value.source == "assumed" for value in quantities.values())
        assert "preliminary" in load_profile(name).description
    for key in ("bf16_flops", "memory_bandwidth_bytes_per_s", "memory_bytes"):
        ref = quantities[key].ref
        assert re.search(
            r"datasheet|whitepaper|systems/|as an H100|nvidia-smi|CUDA reports|docs\.|documentation|arXiv|preliminary",
            ref,
        ), (key, ref)


def test_published_rates_kin_and_the_order_of_datasheets() -> None:
    """NVIDIA GB200 NVL72 datasheet: 72 GPUs, 576 TB/s, and 360 / 720 / 1,440 PFLOP/s with sparsity."""
    profile = load_profile("GB200-NVL72")
    gpus = int(profile.nvlink_domain_gpus)
    assert (gpus, int(profile.gpus_per_node)) == (72, 4)
    assert gpus * float(profile.memory_bandwidth_bytes_per_s) == pytest.approx(576e12)
    for precision, petaflops in (("bf16", 360), ("fp8", 720), ("nvfp4", 1440)):
        assert 2 * gpus * profile.flops(precision) == pytest.approx(petaflops * 1e15)
    # Eager launches cost 39 us on GB200 and 17 us on H100 in the same vLLM 0.24.0 tables.
    grace, x86 = load_profile("gb200_nvl72"), load_profile("h100_sxm")
    assert float(grace.host_link_bandwidth_bytes_per_s) > 3 * float(x86.host_link_bandwidth_bytes_per_s)
    assert 2 < float(grace.eager_launch_s) / float(x86.eager_launch_s) < 3
    with pytest.raises(InputError, match="'h100_sxm' has no nvfp4 rate; it has bf16, fp8"):
        load_profile("h100_sxm").flops("nvfp4")
    # An H20 has 148 / 989 of the arithmetic and 4.0 / 3.35 of the bandwidth of an H100 (their datasheets).
    kin, weak = (device_of(load_profile(name), "vllm").operators for name in ("h100_sxm", "h20_sxm"))
    large, few = np.array([8192.0]), np.array([1.0])
    matrix = Matrix("m", 8192, 8192)
    flops, moved = 2 * 8192.0**3, 2 * (8192.0**2 + 2 * 8192)
    longer_s = weak.gemm(large, matrix, "bf16").seconds - kin.gemm(large, matrix, "bf16").seconds
    assert longer_s[0] == pytest.approx(flops / 148e12 - flops / 989.5e12, rel=0.01)
    shorter_s = kin.gemm(few, matrix, "bf16").seconds - weak.gemm(few, matrix, "bf16").seconds
    assert shorter_s[0] == pytest.approx(moved / 3.35e12 - moved / 4.0e12, rel=0.01)
    assert float(weak.gemm(large, matrix, "bf16").measured[0]) == 0.0
    slow, fast = load_profile("h800_sxm"), load_profile("h100_sxm")
    assert float(slow.nvlink_bandwidth_bytes_per_s) / float(fast.nvlink_bandwidth_bytes_per_s) == pytest.approx(4 / 9)
    known, bare = (project(load_scenario("quickstart", [f"hardware={name}", "simulation.replications=1", "k=0"]))
                   for name in ("h100_sxm", "mi300x"))  # fmt: skip
    widths = [math.log(one.candidate.step_s.high / one.candidate.step_s.low) for one in (known, bare)]
    assert widths[1] ** 2 > widths[0] ** 2 + (2 * 1.6449 * 0.5 * DATASHEET_ERROR) ** 2
    told = [text for text in bare.assumptions if "No operator was measured on mi300x" in text]
    assert len(told) == 1 and "25 %" in told[0] and "70 %" in told[0]
    assert not any("No operator was measured" in text for text in known.assumptions)
    # Where every rate of one device is above the other's by a fifth and more.
    order = ("vr200_nvl72", "mi355x", "mi300x", "tpu_v5p", "a100_pcie")
    seconds = [
        project(
            load_scenario("quickstart", [f"hardware={name}", "simulation.replications=1", "k=0"])
        ).candidate.step_s.mean
        for name in order
    ]
    assert sorted(seconds) == seconds


@pytest.mark.parametrize(("changes", "message"), [
    ({"memory_bytes": 8e10}, "memory_bytes"),
    ({"bf16_flops": {"value": -1.0, "source": "datasheet", "ref": "x"}}, "greater than 0"),
    ({"bf16_flops": {"value": 1e15, "source": "guess", "ref": "x"}}, "datasheet"),
    ({"bf16_flops": {"value": 1e15, "source": "assumed", "ref": ""}}, "at least 1 character"),
    ({"bf16_flops": {"value": float("inf"), "source": "assumed", "ref": "x"}}, "finite"),
    ({"gpus_per_node": {"value": 4.5, "source": "assumed", "ref": "x"}}, "whole number"),
    ({"gpus_per_node": {"value": 5, "source": "assumed", "ref": "x"}}, "do not divide"),
])  # fmt: skip
def test_profile_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        HardwareProfile.model_validate({**load_profile("h100_sxm").model_dump(), **changes})


@pytest.mark.parametrize(("changed", "told"), [
    ({"memory_bandwidth_bytes_per_s": 1790}, r"must be in bytes/s.*got 1790: if those are GB/s, write 1\.79e\+12"),
    ({"memory_bandwidth_bytes_per_s": 3.35}, r"must be in bytes/s.*got 3\.35: if those are TB/s, write 3\.35e\+12"),
    ({"bf16_flops": 500}, r"must be in FLOP/s.*got 500: if those are TFLOP/s, write 5e\+14"),
    ({"memory_bytes": 80}, r"must be in bytes,.*got 80: if those are GB, write 8e\+10"),
    ({"nvlink_latency_s": 4.7}, r"must be in seconds.*got 4\.7: if those are microseconds, write 4\.7e-06"),
    ({"bf16_flops": 1e30}, r"must be in FLOP/s, between 2e\+12 and 5e\+17; got 1e\+30$"),
    ({"memory_bandwidth_bytes_per_s": 1.8e9}, r"must be in bytes/s.*got 1\.8e\+09: GB/s for TB/s\? write 1\.8e\+12$"),
    ({"bf16_flops": 0.5e12}, r"must be in FLOP/s.*got 5e\+11: TFLOP/s for PFLOP/s\? write 5e\+14$"),
])  # fmt: skip
def test_a_number_in_a_datasheets_unit_is_refused_with_the_likely_slip(changed: dict[str, float], told: str) -> None:
    document = load_profile("h100_sxm").model_dump()
    for key, value in changed.items():
        document[key]["value"] = value
    with pytest.raises(ValidationError) as error:
        HardwareProfile.model_validate(document)
    assert re.search(told, error.value.errors()[0]["msg"])


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("H100", "h100_sxm"), ("h100 (8-GPU nodes)", "h100_sxm"), ("H100 PCIe 80GB", "h100_pcie"),
        ("H100 NVL", "h100_nvl"), ("GB300 NVL72", "gb300_nvl72"), ("MI355X", "mi355x"), ("RTX 4090", "rtx_4090"),
        ("RTX PRO 6000", "rtx_pro_6000_server"), ("L40S", "l40s"), ("L40", "l40"), ("A100 40GB", "a100_40gb"),
        ("A100", "a100_sxm"), ("H20-3e", "h20_3e"), ("H20", "h20_sxm"), ("DGX Spark", "dgx_spark"),
        ("TPU v6e", "tpu_v6e"), ("RTX A6000", None),
        ("TPU", None), ("A100/A800 80GB", None), ("H10", None), ("", None),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_what_people_call_it(called: str, name: str | None) -> None:
    assert profile_called(called) == name


def test_a_board_that_is_written_wrongly_is_no_other_board() -> None:
    for name in ("h100", "H100 80GB", "h100_sxm5", "H100 SXM 80GB HBM3", "h100 (8-GPU nodes)"):
        assert load_profile(name).name == "h100_sxm"
    for name in ("h100_pice", "h200_nvl", "b200_foo"):
        with pytest.raises(InputError, match=rf"unknown hardware profile '{name}'; nearest: .*{name[:4]}_"):
            load_profile(name)


SHEET = Datasheet(48, 864, 362, 733, 32, 8, 350, 1.2)


def test_eight_numbers_make_a_profile_by_path(tmp_path: Path) -> None:
    path = write_profile("mine", SHEET, tmp_path / "mine.yaml")
    mine, tabled = load_profile(path), load_profile("l40s")
    assert mine.operator_tables is None and mine.name == "mine"
    for key in ("memory_bandwidth_bytes_per_s", "fp8_flops", "nvlink_bandwidth_bytes_per_s", "power_w"):
        assert float(getattr(mine, key)) == pytest.approx(float(getattr(tabled, key)))
    assert float(mine.memory_bytes) == pytest.approx(48 * 2**30, rel=1e-5)
    assert path.read_text().count("#") > 5
    with pytest.raises(InputError, match=r"mine\.yaml: exists already"):
        write_profile("mine", SHEET, path)
    text = "\n".join(f"{key}: {_yaml(value)}" for key, value in load_profile("h100_sxm").model_dump().items())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.yaml").write_text(text.replace("name: h100_sxm", "name: mine"))
    assert load_profile("mine.yaml", base=tmp_path / "sub").name == "mine"
    with pytest.raises(InputError, match="no such file"):
        load_profile("other.yaml", base=tmp_path)


@pytest.mark.parametrize(("name", "sheet", "told"), [
    ("h100_sxm", SHEET, "comes with rlsim"),
    ("a/b", SHEET, "no name of a profile"),
    ("mine", replace(SHEET, memory_gib=48e9), r"memory_bytes\.value must be in bytes"),
    ("mine", replace(SHEET, memory_gb_per_s=-4.0), "memory_bandwidth_bytes_per_s.*above 0"),
])  # fmt: skip
def test_no_profile_is_written_from_what_is_none(tmp_path: Path, name: str, sheet: Datasheet, told: str) -> None:
    with pytest.raises(InputError, match=told):
        write_profile(name, sheet, tmp_path / "mine.yaml")
    assert not list(tmp_path.iterdir())


def _yaml(value: Any) -> str:
    if isinstance(value, dict):
        return f'{{value: {value["value"]}, source: {value["source"]}, ref: "{value["ref"]}"}}'
    return "null" if value is None else str(value)


@pytest.mark.parametrize(("repository", "card"), [
    ("Qwen/Qwen3-8B", "qwen3-8b"),
    ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
    ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
    ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
    ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
    ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
    ("Qwen/Qwen2.5-Math-7B", "qwen2.5-7b"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
    ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
    ("allenai/Olmo-3-7B-Think", "olmo-3-7b"),
    ("allenai/Olmo-3.1-32B-Instruct", "olmo-3-32b"),
    ("inclusionAI/Ring-flash-2.0", "ling-flash-2.0"),
    ("google/gemma-2-2b-it", "gemma-2-2b"),
    ("Qwen/Qwen3.8-27B", "qwen3.5-27b"),
    ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-9b-v2"),
    ("PrimeIntellect/INTELLECT-3.1", "glm-4.5-air"),
    ("Qwen/Qwen3-VL-8B-Instruct", "qwen3-8b"),
])  # fmt: skip
def test_a_repository_is_the_card_of_its_dimensions(repository: str, card: str) -> None:
    assert card in list_cards()
    # A model that sees has its tower besides.
    assert changed(load_card(repository), vision=None) == load_card(card)


def test_the_repositories_that_cards_come_from_are_known() -> None:
    for card in list_cards():
        source, _, repository = load_card(card).source.partition("config.json of ")
        if source and not repository:  # from a framework's own table of models, or from memory
            continue
        repository = repository.partition(" on Hugging Face")[0]
        assert "/" in repository
        if not repository.endswith("-FP8"):
            assert load_card(repository) == load_card(card)


@pytest.mark.parametrize(("name", "told"), [
    ("Qwen/Qwen3-9B", "unknown model 'Qwen3-9B'; nearest: qwen3.5-9b"),
    ("Qwen/Qwen3-8B-FP8", "holds quantised weights; give model qwen3-8b and state engine.weight_precision"),
    ("Qwen/Qwen3-8B-AWQ", "holds quantised weights"),
    ("someone/Qwen3-8B-pruned", "unknown model"),
    ("inclusionAI/Ring-mini-linear-2.0", "unknown model"),
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16-4layer", "unknown model"),
])  # fmt: skip
def test_other_repositories_are_refused(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_card(name)
