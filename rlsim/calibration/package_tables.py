"""Raw tables of the aiconfigurator-core package, read into rlsim's columns and units.

Only the package's data files are read; its code is never imported. What its columns mean (established from its Python
sources and from the data themselves) is stated in ``calibration/README.md``.
"""

import re
from collections.abc import Mapping, Sequence
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
from rlsim.files.yaml import lists_beside
from rlsim.tables.files import LAYOUTS, TableLayout
from rlsim.units import MILLISECOND, BoolArray

PACKAGE = "aiconfigurator_core"
DISTRIBUTION = "aiconfigurator-core"
PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4",
              "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4", "int4_wo": "int4"}  # fmt: skip
"""rlsim's precision by the package's. Of MXFP4 experts the faster of the two kernels counts, which engines take."""
ELEMENT_BYTES = 2
"""Messages are counted in elements of the width of BF16."""
STATED = {"window_size": 0, "backend": "graph"}
"""Columns that older files lack, with what they mean by it. All-reduces without a mode (TensorRT-LLM) were replayed
from a graph: their smallest messages take 3 to 5 us, where the eager ones of the same devices take 20 to 50 us."""
PHASES = {"alltoall_prepare": "prepare", "alltoall_dispatch": "dispatch", "alltoall_combine": "combine"}
HIDDEN = {"DeepseekV32ForCausalLM": 7168, "GlmMoeDsaForCausalLM": 6144}
"""Hidden size by architecture (config.json of DeepSeek-V3.2 and GLM-5): what tells their blocks apart."""
FEWEST_SHARE = 0.1
"""Of an operation of which less is left after the checks nothing is used: what passed them did so by chance."""
RELEASE = re.compile(r"[\d.]+(?:rc\d+|\.post\d+)?")
"""Version folders that count: releases, their candidates and corrections; builds from a branch do not."""
_STAGES = {"rc": -1, "": 0, "post": 1}


@dataclass(frozen=True)
class Package:
    """Where the package's data are, which version they are of, and what distributes it."""

    systems: Path
    version: str
    distribution: str = DISTRIBUTION


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
        return package_in(source, DISTRIBUTION, source.name)
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise InputError(f"{DISTRIBUTION} is not installed; install it with: pip install 'rlsim[aic]'")
    return Package(Path(spec.origin).parent / "systems", metadata.version(DISTRIBUTION))


def package_in(folder: Path, distribution: str, where: str) -> Package:
    """The package unpacked in ``folder``, which holds ``systems/``; its version is that of the metadata beside it.

    where: the folder, for messages.
    """
    if not (folder / "systems" / "data").is_dir():
        raise InputError(f"{where}: holds no systems/data folder of {distribution}")
    found = sorted(folder.parent.glob(f"{distribution.replace('-', '_')}-*.dist-info"))
    version = found[-1].name.split("-")[1].removesuffix(".dist") if found else "unknown"
    return Package(folder / "systems", version, distribution)


def read_sheet(package: Package, system: str) -> Sheet:
    """Datasheet of ``system``. Raises InputError that names the systems that are there."""
    path, data = package.systems / f"{system}.yaml", package.systems / "data"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in package.systems.glob("*.yaml") if (data / one.stem).is_dir()))
        raise InputError(f"{package.distribution} {package.version} has no system '{system}'; known: {known}")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    gpu, node = content["gpu"], content["node"]
    names = {"bf16": "bfloat16_tc_flops", "nvfp4": "fp4_tc_flops"}
    names |= dict.fromkeys(("fp8", "fp8_block", "mxfp4"), "fp8_tc_flops")
    names["int4"] = names["bf16"]  # of weights alone
    flops = {precision: float(gpu[name]) for precision, name in names.items() if name in gpu}
    return Sheet(flops, float(gpu["mem_bw"]), float(node["intra_node_bw"]), int(gpu["sm_version"]))


def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Order of version strings: by release, a candidate (1.3.0rc20) before it, a correction (0.5.6.post2) after it.

    >>> sorted(["1.3.0", "1.3.0rc20", "1.3.0.post1", "1.3.0rc3", "1.2.9"], key=version_key)
    ['1.2.9', '1.3.0rc3', '1.3.0rc20', '1.3.0', '1.3.0.post1']
    """
    release, stage, number = re.findall(r"^([\d.]*)(rc|post)?(\d*)", version)[0]
    return tuple(int(part) for part in release.split(".") if part), _STAGES[stage], int(number or 0)


def current_version(package: Package, system: str, backend: str) -> str:
    """The engine version the package declares current for a system. Raises InputError where it declares none."""
    declared = yaml.safe_load((package.systems / "query_versions.yaml").read_text(encoding="utf-8"))
    # A system may be pinned to another release than the rest.
    slots = declared.get("overrides", {}).get(system, {}).get(backend) or declared["defaults"].get(backend)
    if slots is None:
        known = ", ".join(declared["defaults"])
        raise InputError(f"{package.distribution} declares no version of '{backend}'; known: {known}")
    return str(slots["current"])


def find_table(package: Package, place: tuple[str, str, str], name: str, version: str | None) -> Path | None:
    """File of one table in the newest version folder not newer than ``version`` (None: newest of all).

    place: system, family of operations and engine.
    """
    folder = package.systems.joinpath("data", *place)
    found = [path for path in folder.glob(f"*/{name}_perf.parquet") if RELEASE.fullmatch(path.parent.name)]
    if version is not None:
        # A newer table is of kernels that the asked release does not have.
        found = [path for path in found if version_key(path.parent.name) <= version_key(version)]
    return max(found, key=lambda path: version_key(path.parent.name), default=None)


def collected_until(package: Package, system: str) -> str:
    """Latest collection date that the package states for the system's tables; 'unknown' where it states none."""
    dates: list[str] = []
    for path in (package.systems / "data" / system).glob("*/*/*/collection_meta.yaml"):
        dates += re.findall(r"collected_at: '?(\d{4}-\d{2}-\d{2})", path.read_text(encoding="utf-8"))
    return max(dates, default="unknown")


@dataclass(frozen=True)
class Source:
    """Where an operation's raw rows are in a package, and which of them rlsim keeps in which columns.

    The fields are those of package_columns.yaml. least_share: of the rows, of which more must pass the checks.
    """

    layout: TableLayout
    family: str
    files: Sequence[str]
    columns: Mapping[str, str | None]
    keep: Mapping[str, Sequence[str | int]]
    known: Sequence[str] = ()
    few_steps: Sequence[str] = ()
    powers: Sequence[str] = ()
    kernel: str = ""
    engine: str | None = None
    least_share: float = FEWEST_SHARE

    def path(self, package: Package, system: str, backend: str, version: str) -> Path | None:
        """File of the raw rows, of the engine not newer than ``version``; None where there is none."""
        # The version is of the asked engine; tables of another one (NCCL) count their releases otherwise.
        newest = None if self.engine else version
        place = (system, self.family, self.engine or backend)
        found = (find_table(package, place, name, newest) for name in self.files)
        return next((path for path in found if path is not None), None)

    def adapt(self, raw: Columns) -> Columns:
        """Rows that rlsim uses, with latency in seconds and the kernel that ran. KeyError: a column is missing."""
        table = {name: _column(raw, name, of) for name, of in self.columns.items()}
        chosen = np.char.startswith(raw["kernel_source"], self.kernel)
        for name, values in self.keep.items():
            chosen &= np.isin(_stated(raw, name), list(values))
        for name in self.known:
            chosen &= table[name] != ("" if table[name].dtype.kind == "U" else 0)
        for name in self.few_steps:
            chosen &= _few_steps(table[name])
        for name in self.powers:
            sizes = table[name].astype(np.int64)
            chosen &= (sizes > 0) & ((sizes & (sizes - 1)) == 0)
        return take({**table, "latency_s": raw["latency"] * MILLISECOND, "kernel": raw["kernel_source"]}, chosen)


def sources_of(package: str, least_share: float = FEWEST_SHARE) -> tuple[Source, ...]:
    """The operations of a package in package_columns.yaml, in the order of rlsim's tables."""
    operations = lists_beside(__file__, "package_columns.yaml")[package]
    layouts = [layout for layout in LAYOUTS if layout.name in operations]
    return tuple(
        Source(layout, **{"keep": {}, "least_share": least_share, **operations[layout.name]}) for layout in layouts
    )


def read_raw(path: Path, source: Source, distribution: str) -> RawTable:
    """Rows of a file in the columns of ``source``. Raises InputError where a column is missing."""
    table = pq.ParquetFile(path).read()
    raw: Columns = {}
    for name in table.column_names:
        column = table.column(name).to_numpy()
        # Strings of Parquet come as objects, which np.char does not take.
        raw[name] = column.astype(np.str_) if column.dtype == object else column
    try:
        # A file may hold older rows beside those of its folder; one whose rows are all older was carried over whole.
        of_version = raw["version"] == path.parent.name
        columns = source.adapt(take(raw, of_version) if of_version.any() else raw)
    except KeyError as error:
        raise InputError(f"{path.name} of {distribution}: has no column {error}") from error
    return RawTable(columns, path.parent.name, str(raw["device"][0]), row_count(raw))


def _column(raw: Columns, name: str, of: str | None) -> NDArray[Any]:
    """A column of rlsim's from those of the package that it states, or by its name where it states none."""
    if of is not None:
        total = np.sum([raw[part] for part in of.split(" + ")], axis=0) if "+" in of else raw[of]
        return _translated(total, PRECISIONS, "") if name.endswith("precision") else total
    match name:
        case "op":
            return np.full(row_count(raw), "dynamic_scale")
        case "transport":
            return np.where(raw["kernel_source"] == "NVLinkOneSided", "one_sided", "two_sided")
        case "phase":
            return _translated(raw["op_name"], PHASES, "")
        case "mode":
            return np.where(np.char.endswith(_stated(raw, "backend"), "graph"), "graph", "eager")
        case "message_bytes":
            return np.asarray(raw["message_size"] * ELEMENT_BYTES)
        case "indexer":
            return np.where(np.char.endswith(raw["op_name"], "_skip_indexer"), 0, 1)
        case "hidden":
            return _translated(raw["architecture"], HIDDEN, 0)
    # Channels that a convolution runs over: inputs, B and C of Mamba-2, or queries, keys and values.
    if "nheads" in raw:
        return np.asarray(raw["nheads"] * raw["head_dim"] + 2 * raw["n_groups"] * raw["d_state"], dtype=np.int64)
    keys, values = raw["num_k_heads"] * raw["head_k_dim"], raw["num_v_heads"] * raw["head_v_dim"]
    return np.asarray(2 * keys + values, dtype=np.int64)


def _translated(column: NDArray[Any], words: Mapping[str, str | int], other: str | int) -> NDArray[Any]:
    """rlsim's word or number for each of the package's; ``other`` for those that are not used."""
    found, codes = np.unique(column, return_inverse=True)
    return np.array([words.get(str(word), other) for word in found])[codes]


def _stated(raw: Columns, name: str) -> NDArray[Any]:
    return raw[name] if name in raw or name not in STATED else np.full(row_count(raw), STATED[name])


def _few_steps(m: NDArray[np.int64]) -> BoolArray:
    """Rows whose m is one of at most four equal steps between powers of two (1, 2 ... 8, 10, 12, 14, 16, 20 ...)."""
    step = 2 ** np.maximum(np.floor(np.log2(m)).astype(np.int64) - 2, 0)
    return np.asarray(m % step == 0)
