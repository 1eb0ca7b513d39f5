"""Raw tables of the aisimulate package, the successor of aiconfigurator-core, read into rlsim's columns and units.

Only its data files are read, from the wheel or from its unpacked folder; its code is never imported.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rlsim.calibration.columns import Columns
from rlsim.calibration.package_tables import Package, kept_rows, precisions
from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.units import BoolArray

DISTRIBUTION = "aisimulate"
CORE = "aisimulate_core"
FAMILIES = ("linear_attention", "sparse_attention")
"""Folders of operators that aiconfigurator-core 0.12 lacks; the others are not read."""
LARGEST_MEMBER_BYTES = 64 * 2**20
"""Largest file of a wheel that is unpacked; the largest of its tables has 3 MB."""


@contextmanager
def open_package(source: Path, system: str | None = None) -> Iterator[Package]:
    """The package in a wheel or a folder, unpacked as far as ``system`` (None: of every system) needs it.

    source: a .whl file, or the folder that holds aisimulate_core/ (or is it). Raises InputError where it is neither.
    """
    if source.is_dir():
        core = source if (source / "systems").is_dir() else source / CORE
        if not (core / "systems" / "data").is_dir():
            raise InputError(f"{shown_path(source)}: holds no {CORE}/systems/data of {DISTRIBUTION}")
        names = [path.name for path in core.parent.glob(f"{DISTRIBUTION}-*.dist-info")]
        yield Package(core / "systems", _version(names))
        return
    if not source.is_file() or not zipfile.is_zipfile(source):
        raise InputError(f"{shown_path(source)}: is neither a wheel of {DISTRIBUTION} nor a folder of it")
    with tempfile.TemporaryDirectory(prefix="rlsim-") as folder, zipfile.ZipFile(source) as wheel:
        wanted = [member for member in wheel.infolist() if _is_read(member.filename, system)]
        if not wanted:
            raise InputError(f"{shown_path(source)}: holds no {CORE}/systems/data of {DISTRIBUTION}")
        for member in wanted:
            if member.file_size > LARGEST_MEMBER_BYTES:
                raise InputError(f"{shown_path(source)}: {member.filename} is larger than any table")
            wheel.extract(member, folder)
        yield Package(Path(folder) / CORE / "systems", _version([name.split("/")[0] for name in wheel.namelist()]))


def _is_read(name: str, system: str | None) -> bool:
    parts = name.split("/")
    if parts[:2] != [CORE, "systems"] or ".." in parts or name.endswith("/"):
        return False
    if len(parts) == 3:
        return name.endswith(".yaml")
    return len(parts) > 5 and parts[2] == "data" and parts[3] == (system or parts[3]) and parts[4] in FAMILIES


def _version(names: list[str]) -> str:
    """Version that the name of the distribution's metadata folder states."""
    found = [name for name in names if name.startswith(f"{DISTRIBUTION}-") and name.endswith(".dist-info")]
    return found[0].removeprefix(f"{DISTRIBUTION}-").removesuffix(".dist-info") if found else "unknown"


def _recurrence(raw: Columns, phase: str, kernel: str) -> BoolArray:
    here = (raw["phase"] == phase) & np.char.startswith(raw["kernel_source"], kernel)
    return np.asarray(here, dtype=bool)


def _sizes(raw: Columns, phase: str) -> Columns:
    return {"batch": raw["batch_size"]} | ({"prompt_tokens": raw["seq_len"]} if phase == "context" else {})


def _delta_rule(raw: Columns, phase: str, kernel: str) -> Columns:
    table = {
        "key_head_dim": raw["head_k_dim"],
        "value_head_dim": raw["head_v_dim"],
        "key_heads": raw["num_k_heads"],
        "value_heads": raw["num_v_heads"],
        **_sizes(raw, phase),
    }
    return kept_rows(table, raw, _recurrence(raw, phase, kernel))


def adapt_delta_rule_decode(raw: Columns) -> Columns:
    """Gated delta rule, one token of each sequence; heads per rank."""
    return _delta_rule(raw, "generation", "fused_recurrent")


def adapt_delta_rule_prefill(raw: Columns) -> Columns:
    """Gated delta rule over whole prompts of equal length; heads per rank."""
    return _delta_rule(raw, "context", "chunk_gated_delta_rule")


def _channels(raw: Columns) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Channels that the convolution runs over: queries, keys and values, or inputs, B and C of Mamba-2."""
    if "nheads" in raw:
        return np.asarray(raw["nheads"] * raw["head_dim"] + 2 * raw["n_groups"] * raw["d_state"], dtype=np.int64)
    keys, values = raw["num_k_heads"] * raw["head_k_dim"], raw["num_v_heads"] * raw["head_v_dim"]
    return np.asarray(2 * keys + values, dtype=np.int64)


def _convolution(raw: Columns, phase: str) -> Columns:
    table = {"conv_kernel": raw["d_conv"], "channels": _channels(raw), **_sizes(raw, phase)}
    return kept_rows(table, raw, _recurrence(raw, phase, "causal_conv1d"))


def adapt_convolution_decode(raw: Columns) -> Columns:
    """Short convolution, one token of each sequence; channels per rank."""
    return _convolution(raw, "generation")


def adapt_convolution_prefill(raw: Columns) -> Columns:
    """Short convolution over whole prompts of equal length; channels per rank."""
    return _convolution(raw, "context")


HIDDEN = {"DeepseekV32ForCausalLM": 7168, "GlmMoeDsaForCausalLM": 6144}
"""Hidden size by architecture (config.json of DeepSeek-V3.2 and GLM-5): what tells their blocks apart."""


def _sparse(raw: Columns, module: str, tokens: Columns) -> Columns:
    architectures, codes = np.unique(raw["architecture"], return_inverse=True)
    alone = raw["op_name"] == f"{module}_skip_indexer"
    table = {
        "indexer": np.where(alone, 0, 1),
        "hidden": np.array([HIDDEN.get(str(word), 0) for word in architectures])[codes],
        "gemm_precision": precisions(raw["gemm_type"]),
        "kv_precision": precisions(raw["kv_cache_dtype"]),
        "heads": raw["num_heads"],
        "batch": raw["batch_size"],
        **tokens,
    }
    keep = ((raw["op_name"] == module) | alone) & (raw["mla_dtype"] == "bfloat16") & (table["hidden"] > 0)
    keep &= np.isin(table["gemm_precision"], ("bf16", "fp8_block")) & (table["kv_precision"] != "")
    keep &= _power_of_two(next(iter(tokens.values())))
    return kept_rows(table, raw, keep if "prompt_tokens" not in tokens else keep & (raw["step"] == 0))


def adapt_sparse_decode(raw: Columns) -> Columns:
    """Blocks of sparse latent attention at decode, their indexer included; the context counts the new token."""
    return _sparse(raw, "dsa_generation_module", {"context_tokens": raw["step"]})


def adapt_sparse_prefill(raw: Columns) -> Columns:
    """The same over whole prompts, nothing cached before."""
    return _sparse(raw, "dsa_context_module", {"prompt_tokens": raw["isl"]})


def _power_of_two(sizes: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> BoolArray:
    """Contexts that every engine's collection shares; those between them add nothing but rows."""
    whole = sizes.astype(np.int64)
    return np.asarray((whole > 0) & ((whole & (whole - 1)) == 0), dtype=bool)
