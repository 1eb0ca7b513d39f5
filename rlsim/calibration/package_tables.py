"""Raw tables of the aiconfigurator-core package, read into rlsim's columns and units.

Only the package's data files are read; its code is never imported. What its columns mean (established from its Python
sources and from the data themselves) is stated in ``calibration/README.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

from rlsim.calibration.columns import Columns, row_count, take
from rlsim.errors import InputError
from rlsim.units import MILLISECOND

PACKAGE = "aiconfigurator_core"
DISTRIBUTION = "aiconfigurator-core"
PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
HEAD_DIMS = (64, 128, 192, 256)
NCCL_TYPE, NCCL_BYTES = "half", 2
"""NCCL rows kept: 2-byte elements, the width of BF16."""
RELEASE = re.compile(r"[\d.]+(?:rc\d+|\.post\d+)?")
"""Version folders that count: releases, their candidates and corrections; builds from a branch do not."""
_STAGES = {"rc": -1, "": 0, "post": 1}


@dataclass(frozen=True)
class Package:
    """Where the package's data are and which version they are of."""

    systems: Path
    version: str


@dataclass(frozen=True)
class Sheet:
    """Datasheet rates of one system as the package states them.

    flops: peak dense FLOP/s by precision. hbm_bytes_per_s, link_bytes_per_s: per GPU, link in one direction.
    """

    flops: Mapping[str, float]
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    compute_capability: int


@dataclass(frozen=True)
class RawTable:
    """Rows of one operation in rlsim's columns, with the version and device they were measured with."""

    columns: Columns
    engine_version: str
    device: str
    rows_in_file: int


def find_package(source: Path | None) -> Package:
    """The installed package, or the unpacked one at ``source`` (the folder that holds ``systems/``).

    Raises InputError that says how to install it.
    """
    if source is not None:
        if not (source / "systems" / "data").is_dir():
            raise InputError(f"{source.name}: holds no systems/data folder of {DISTRIBUTION}")
        found = sorted(source.parent.glob(f"{PACKAGE}-*.dist-info"))
        return Package(source / "systems", found[-1].name.split("-")[1].removesuffix(".dist") if found else "unknown")
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise InputError(f"{DISTRIBUTION} is not installed; install it with: pip install 'rlsim[aic]'")
    return Package(Path(spec.origin).parent / "systems", metadata.version(DISTRIBUTION))


def read_sheet(package: Package, system: str, distribution: str = DISTRIBUTION) -> Sheet:
    """Datasheet of ``system``. Raises InputError that names the systems that are there."""
    path = package.systems / f"{system}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in package.systems.glob("*.yaml") if (data_of(package, path.stem))))
        raise InputError(f"{distribution} {package.version} has no system '{system}'; known: {known}")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    gpu, node = content["gpu"], content["node"]
    names = {"bf16": "bfloat16_tc_flops", "fp8": "fp8_tc_flops", "fp8_block": "fp8_tc_flops", "nvfp4": "fp4_tc_flops"}
    flops = {precision: float(gpu[name]) for precision, name in names.items() if name in gpu}
    return Sheet(flops, float(gpu["mem_bw"]), float(node["intra_node_bw"]), int(gpu["sm_version"]))


def data_of(package: Package, system: str) -> Path | None:
    """Folder of the system's measured tables, None where it has none."""
    folder = package.systems / "data" / system
    return folder if folder.is_dir() else None


def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Order of version strings: by release, a candidate (1.3.0rc20) before it, a correction (0.5.6.post2) after it.

    >>> sorted(["1.3.0", "1.3.0rc20", "1.3.0.post1", "1.3.0rc3", "1.2.9"], key=version_key)
    ['1.2.9', '1.3.0rc3', '1.3.0rc20', '1.3.0', '1.3.0.post1']
    """
    release, stage, number = re.findall(r"^([\d.]*)(rc|post)?(\d*)", version)[0]
    return tuple(int(part) for part in release.split(".") if part), _STAGES[stage], int(number or 0)


def current_version(package: Package, system: str, backend: str, distribution: str = DISTRIBUTION) -> str:
    """The engine version the package declares current for a system. Raises InputError where it declares none."""
    declared = yaml.safe_load((package.systems / "query_versions.yaml").read_text(encoding="utf-8"))
    slots = declared.get("overrides", {}).get(system, {}).get(backend) or declared["defaults"].get(backend)
    if slots is None:
        raise InputError(f"{distribution} declares no version of '{backend}'; known: {', '.join(declared['defaults'])}")
    return str(slots["current"])


def find_table(package: Package, system: str, family: str, engine: str, name: str, version: str | None) -> Path | None:
    """File of one table in the newest version folder not newer than ``version`` (None: newest of all)."""
    folder = package.systems / "data" / system / family / engine
    found = [path for path in folder.glob(f"*/{name}_perf.parquet") if RELEASE.fullmatch(path.parent.name)]
    if version is not None:
        found = [path for path in found if version_key(path.parent.name) <= version_key(version)]
    return max(found, key=lambda path: version_key(path.parent.name), default=None)


def collected_until(package: Package, system: str) -> str:
    """Latest collection date that the package states for the system's tables; 'unknown' where it states none."""
    dates: list[str] = []
    for path in (package.systems / "data" / system).glob("*/*/*/collection_meta.yaml"):
        dates += re.findall(r"collected_at: '?(\d{4}-\d{2}-\d{2})", path.read_text(encoding="utf-8"))
    return max(dates, default="unknown")


def read_raw(path: Path, adapt: Callable[[Columns], Columns], distribution: str = DISTRIBUTION) -> RawTable:
    """Rows of a file through one of the adapters below. Raises InputError where a column is missing."""
    table = pq.ParquetFile(path).read()
    raw: Columns = {}
    for name in table.column_names:
        column = table.column(name).to_numpy()
        raw[name] = column.astype(np.str_) if column.dtype == object else column
    try:
        # A file may hold older rows beside those of its folder; one whose rows are all older was carried over whole.
        of_version = raw["version"] == path.parent.name
        columns = adapt(take(raw, of_version) if of_version.any() else raw)
    except KeyError as error:
        raise InputError(f"{path.name} of {distribution}: has no column {error}") from error
    return RawTable(columns, path.parent.name, str(raw["device"][0]), row_count(raw))


def precisions(column: NDArray[Any]) -> NDArray[Any]:
    """rlsim's names of the package's data types; '' for those that are not kept."""
    words, codes = np.unique(column, return_inverse=True)
    return np.array([PRECISIONS.get(str(word), "") for word in words])[codes]


def _few_steps(m: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows whose m is one of at most four equal steps between powers of two (1, 2 ... 8, 10, 12, 14, 16, 20 ...)."""
    step = 2 ** np.maximum(np.floor(np.log2(m)).astype(np.int64) - 2, 0)
    return np.asarray(m % step == 0)


def adapt_gemm(raw: Columns) -> Columns:
    """GEMM rows, m thinned to at most four steps per doubling."""
    table = {"precision": precisions(raw["gemm_dtype"]), **{name: raw[name] for name in ("n", "k", "m")}}
    return kept_rows(table, raw, (table["precision"] != "") & _few_steps(raw["m"]))


def _stated(raw: Columns, name: str, default: int | str) -> NDArray[Any]:
    """A column that older files lack, with what they mean by it."""
    return raw[name] if name in raw else np.full(row_count(raw), default)


def _attention(raw: Columns) -> tuple[Columns, NDArray[np.bool_]]:
    table = {
        "head_dim": raw["head_dim"],
        "kv_precision": precisions(raw["kv_cache_dtype"]),
        "heads": raw["num_heads"],
        "kv_heads": raw["num_key_value_heads"],
        "batch": raw["batch_size"],
    }
    plain = (_stated(raw, "window_size", 0) == 0) & (raw["beam_width"] == 1) & (raw["attn_dtype"] == "bfloat16")
    return table, plain & np.isin(raw["head_dim"], HEAD_DIMS)


def adapt_decode_attention(raw: Columns) -> Columns:
    """Decode attention without window; the context includes the new token."""
    table, keep = _attention(raw)
    return kept_rows({**table, "context_tokens": raw["step"] + raw["isl"]}, raw, keep)


def adapt_prefill_attention(raw: Columns) -> Columns:
    """Prefill attention without window and without cached prefix."""
    table, keep = _attention(raw)
    return kept_rows({**table, "prompt_tokens": raw["isl"]}, raw, keep & (raw["step"] == 0))


def _latent(raw: Columns) -> Columns:
    return {"kv_precision": precisions(raw["kv_cache_dtype"]), "heads": raw["num_heads"], "batch": raw["batch_size"]}


def _mla(raw: Columns) -> Columns:
    return {"gemm_precision": precisions(raw["gemm_type"]), **_latent(raw)}


def adapt_mla_decode(raw: Columns) -> Columns:
    """MLA blocks of DeepSeek-V3 at decode, BF16 attention arithmetic."""
    keep = (raw["mla_dtype"] == "bfloat16") & (raw["tp_size"] == 1)
    return kept_rows({**_mla(raw), "context_tokens": raw["step"]}, raw, keep)


def adapt_mla_prefill(raw: Columns) -> Columns:
    """MLA blocks of DeepSeek-V3 at prefill, BF16 attention arithmetic, no cached prefix."""
    keep = (raw["mla_dtype"] == "bfloat16") & (raw["tp_size"] == 1) & (raw["step"] == 0)
    return kept_rows({**_mla(raw), "prompt_tokens": raw["isl"]}, raw, keep)


def _mla_kernel(raw: Columns) -> tuple[Columns, NDArray[np.bool_]]:
    table = _latent(raw)
    return table, (raw["mla_dtype"] == "bfloat16") & (table["kv_precision"] != "")


def adapt_mla_decode_kernel(raw: Columns) -> Columns:
    """Latent attention alone at decode; heads per rank, the context includes the new token."""
    table, keep = _mla_kernel(raw)
    return kept_rows({**table, "context_tokens": raw["step"] + raw["isl"]}, raw, keep)


def adapt_mla_prefill_kernel(raw: Columns) -> Columns:
    """Attention of DeepSeek-V3 alone at prefill; heads per rank, no cached prefix."""
    table, keep = _mla_kernel(raw)
    return kept_rows({**table, "prompt_tokens": raw["isl"]}, raw, keep & (raw["step"] == 0))


def adapt_moe(raw: Columns) -> Columns:
    """Routed experts of every model shape, in the precisions rlsim knows."""
    names = {
        "hidden_size": "hidden",
        "inter_size": "width",
        "topk": "top_k",
        "num_experts": "experts",
        "moe_tp_size": "tensor_parallel",
        "moe_ep_size": "expert_parallel",
        "distribution": "distribution",
        "num_tokens": "tokens",
    }
    table = {"precision": precisions(raw["moe_dtype"]), **{new: raw[old] for old, new in names.items()}}
    return kept_rows(table, raw, table["precision"] != "")


def adapt_quantize(raw: Columns) -> Columns:
    """FP8 scaling of m x k activations; the operation's name is that of the file."""
    table = {"op": np.full(row_count(raw), "dynamic_scale"), "k": raw["k"], "m": raw["m"]}
    return kept_rows(table, raw, (raw["quant_dtype"] == "fp8") & _few_steps(raw["m"]))


def adapt_expert_exchange(raw: Columns) -> Columns:
    """All-to-all of TensorRT-LLM around experts over NVLink, phase by phase."""
    phases = {"alltoall_prepare": "prepare", "alltoall_dispatch": "dispatch", "alltoall_combine": "combine"}
    table = {
        "transport": np.where(raw["kernel_source"] == "NVLinkOneSided", "one_sided", "two_sided"),
        "phase": np.array([phases.get(str(word), "") for word in raw["op_name"]]),
        "precision": precisions(raw["moe_dtype"]),
        "hidden": raw["hidden_size"],
        "top_k": raw["topk"],
        "experts": raw["num_experts"],
        "num_gpus": raw["moe_ep_size"],
        "tokens": raw["num_tokens"],
    }
    return kept_rows(table, raw, (table["phase"] != "") & (table["precision"] != ""))


def adapt_all_reduce(raw: Columns) -> Columns:
    """The engine's all-reduce; the package counts elements of 2 bytes.

    Files that state no mode (TensorRT-LLM) were replayed from a graph: their smallest messages take 3 to 5 us, where
    the eager ones of the same devices take 20 to 50 us.
    """
    mode = np.where(np.char.endswith(_stated(raw, "backend", "graph"), "graph"), "graph", "eager")
    table = {"mode": mode, "num_gpus": raw["num_gpus"], "message_bytes": raw["message_size"] * NCCL_BYTES}
    return kept_rows(table, raw, raw["allreduce_dtype"] == "bfloat16")


def adapt_collectives(raw: Columns) -> Columns:
    """NCCL collectives; the package counts elements of the full tensor."""
    table = {"op": raw["op_name"], "num_gpus": raw["num_gpus"], "message_bytes": raw["message_size"] * NCCL_BYTES}
    return kept_rows(table, raw, raw["nccl_dtype"] == NCCL_TYPE)


def kept_rows(table: Columns, raw: Columns, keep: NDArray[np.bool_], unit: float = MILLISECOND) -> Columns:
    """The rows that rlsim uses, with latency in seconds and the kernel that ran."""
    full = {**table, "latency_s": raw["latency"] * unit, "kernel": raw["kernel_source"]}
    return take(full, keep)
