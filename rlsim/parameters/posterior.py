"""What all measurements together say of fitted terms and of groups: a normal posterior, read from one file.

The file (docs/uncertainty.md) is an archive of arrays with a JSON header; ``rlsim calibrate fit`` writes the
shipped one, ``rlsim calibrate own`` one with a user's own rows.
"""

import json
import math
from collections.abc import Iterable, Mapping
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from rlsim.errors import InputError
from rlsim.files.archives import archive, read_arrays
from rlsim.files.lookup import as_path, catalogue, find_entry
from rlsim.files.reading import TABLE_BYTES, data_folder, shown_path
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.fingerprint import file_digest
from rlsim.tables.profile import load_profile
from rlsim.units import FloatArray

DeviceOrder = Mapping[str, Mapping[str, float]]
"""By device, each worse device with the least factor between their kernels' times, as a logarithm of at least 0."""


def shipped_order() -> DeviceOrder:
    """Order of the profiles that come with rlsim and have measured kernels; a datasheet alone orders none."""
    known = (load_profile(name) for name in sorted(catalogue("hardware_profiles")))
    return order_of([profile for profile in known if profile.operator_tables is not None])


def order_of(profiles: Iterable[HardwareProfile]) -> DeviceOrder:
    """Order of ``profiles``: one is better than another that it equals or exceeds in every rate, on the same host."""
    known, order = [(one.name, one.host_cpu, _rates(one)) for one in profiles], dict[str, dict[str, float]]()
    for better, host, mine in known:
        for worse, other_host, rates in known:
            if host == other_host and mine != rates and all(a >= b for a, b in zip(mine, rates, strict=True)):
                # The least of the ratios: whatever binds a kernel, the better device is faster by this much.
                gain = min(a / b for a, b in zip(mine[:KERNEL_RATES], rates, strict=False))
                order.setdefault(better, {})[worse] = math.log(gain)
    return order


KERNEL_RATES = 3
"""The first rates, which kernels are bound by: memory bandwidth, BF16 and FP8."""


def _rates(profile: HardwareProfile) -> list[float]:
    links = profile.nvlink_bandwidth_bytes_per_s, profile.network_bandwidth_bytes_per_s
    kernels = profile.memory_bandwidth_bytes_per_s, profile.bf16_flops, profile.fp8_flops
    # A rate that a device lacks (NVFP4) is 0: any device that has it is at least as good there.
    return [float(rate or 0.0) for rate in (*kernels, profile.nvfp4_flops, *links)]


def ordered_mean(device: str, measured: Mapping[str, float], order: DeviceOrder) -> float:
    """Mean deviation of a group on ``device``, where it was never measured, in logarithms.

    measured: mean deviations of the same group on other devices. The mean of the population, 0, moved as little as it
    takes to keep times in the order of the datasheets: no deviation measured on one device alone makes a better one
    slower, or a worse one faster.
    """
    worse = order.get(device, {})
    high = min((measured[name] + gain for name, gain in worse.items() if name in measured), default=math.inf)
    better = {name: gains[device] for name, gains in order.items() if device in gains and name in measured}
    low = max((measured[name] - gain for name, gain in better.items()), default=-math.inf)
    # Where measured devices contradict the datasheets' order, half way between them.
    return (low + high) / 2 if low > high else min(max(0.0, low), high)


DEFAULT = "joint"
"""The posterior that comes with rlsim."""
EVIDENCE = "evidence.npz"
NONE = "none"
"""Name for no posterior: the fitted sets as their files hold them, without group deviations."""
SUFFIX = ".npz"
SCHEMA = "rlsim.posterior/1"


class Posterior(Struct, frozen=True, eq=False, dict=True):
    """A normal distribution of deviations of terms and groups, in logarithms or in the terms' scales.

    digests: of the fitted sets whose terms it moves, by set. columns: names of terms, then of groups. mean: shape
    (columns,); of terms, what they are moved by. factor: lower triangular, shape (columns, columns); the covariance is
    factor times its transpose. terms: how many columns are terms. spreads: scale of a group that was never measured, by
    family; errors: scale of a published time's own error, by kind; both are scales of Student's t, with
    ``group_degrees`` and ``degrees``. device_order: of the devices that were known when it was fitted.
    """

    name: str
    description: str
    digests: Mapping[str, str]
    columns: tuple[str, ...]
    mean: FloatArray
    factor: FloatArray
    terms: int
    spreads: Mapping[str, float]
    errors: Mapping[str, float]
    degrees: float
    group_degrees: float
    rows: Mapping[str, int]
    fit: Mapping[str, object] = field(default_factory=dict)
    device_order: DeviceOrder = field(default_factory=dict)

    @property
    def shifts(self) -> dict[str, float]:
        """Mean deviation of each term, by its name."""
        return dict(zip(self.columns[: self.terms], self.mean[: self.terms].tolist(), strict=True))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.columns)}

    def place(self, name: str) -> int | None:
        """Column of a term or group; None for a group that was never measured."""
        return self._places.get(name)

    def deviation(self, groups: Iterable[str]) -> float:
        """Sum of the mean deviations of ``groups``, in logarithms."""
        return sum(self.mean_of(group) for group in groups)

    def mean_of(self, name: str) -> float:
        """Mean of a term or a group.

        Of one never measured 0, moved as the order of devices asks where the same was measured on another device.
        """
        place = self.place(name)
        if place is not None:
            return float(self.mean[place])
        stem, device = _parted(name)
        return ordered_mean(device, self._by_device.get(stem, {}), self.device_order)

    @cached_property
    def _by_device(self) -> dict[str, dict[str, float]]:
        """Means of groups on devices of known order, by the rest of their names and device."""
        order, out = self.device_order, dict[str, dict[str, float]]()
        known = {*order, *(worse for gains in order.values() for worse in gains)}
        for column, mean in zip(self.columns[self.terms :], self.mean[self.terms :].tolist(), strict=True):
            stem, device = _parted(column)
            if device in known:
                out.setdefault(stem, {})[device] = mean
        return out

    def to_bytes(self) -> bytes:
        """The file: equal posteriors give equal bytes."""
        names = [name for name in self.__struct_fields__ if name not in ("mean", "factor")]
        header = {"schema": SCHEMA, **{name: getattr(self, name) for name in names}}
        # The lower triangle alone: the upper one is zero.
        lower = self.factor[np.tril_indices(len(self.columns))].astype("<f4")
        text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        return archive({"header": text, "mean": self.mean.astype("<f4"), "factor": lower})

    def at(self, path: Path) -> dict[str, str]:
        """Overrides that price a scenario with it, from the file ``path``, which is written."""
        path.write_bytes(self.to_bytes())
        return {"simulation.posterior": str(path)}


def _parted(group: str) -> tuple[str, str]:
    """A group's name without its last word, which is the device where it has one, and that word."""
    device = group.rpartition(" ")[2]
    return group.removesuffix(device), device


def posterior_path(name_or_path: str, base: Path | None = None) -> Path:
    """File of the posterior called ``name_or_path``, or the file of that path. Raises InputError with the nearest."""
    known = _shipped()
    if name_or_path in known:
        return known[name_or_path]
    hint = f", a path to a file ({SUFFIX}), or {NONE}"
    return as_path(name_or_path, (SUFFIX,), base) or find_entry(name_or_path, known, "posterior", hint)


@cache
def _shipped() -> dict[str, Path]:
    folder = data_folder("calibration") / "posterior"
    return {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}")) if path.stem != "evidence"}


def evidence_path() -> Path:
    """Where the shipped evidence lies: the measured times beside the posterior; an answer names the nearest of them."""
    return data_folder("calibration") / "posterior" / EVIDENCE


def posterior_digest(name_or_path: str) -> str:
    """Digest of the posterior's file, wherever it lies; ``none`` for none."""
    return NONE if name_or_path == NONE else file_digest(posterior_path(name_or_path))


def load_posterior(name_or_path: str) -> Posterior | None:
    """The posterior of that name or path; None for ``none``. Raises InputError where the file is none."""
    if name_or_path == NONE:
        return None
    path = posterior_path(name_or_path)
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"{shown_path(path)}: no such file") from error
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, modified_ns: int, size: int) -> Posterior:
    """A file is read again whenever its time of change or its size is another."""
    where = shown_path(path)
    try:
        arrays = read_arrays(path, TABLE_BYTES)
        header = json.loads(arrays["header"].tobytes().decode())
        mean, lower = arrays["mean"].astype(np.float64), arrays["factor"].astype(np.float64)
        if header["schema"] != SCHEMA:
            raise ValueError(f"its schema is {str(header['schema'])[:40]!r}")
        count = len(header["columns"])
        factor = np.zeros((count, count))
        factor[np.tri(count, dtype=bool)] = lower
        # A NaN would pass through every factor into all answers without a word.
        if mean.shape != (count,) or not (np.isfinite(mean).all() and np.isfinite(factor).all()):
            raise ValueError("its arrays do not fit its header")
        del header["schema"]
        return Posterior(**header | {"columns": tuple(header["columns"]), "mean": mean, "factor": factor})
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{where}: is no posterior of rlsim ({str(error)[:80]})") from None
