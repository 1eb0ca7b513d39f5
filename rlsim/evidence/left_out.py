"""How wide a deviation that nobody measured may be: scales of new members at which 90 % intervals hold 90 %.

Whole releases, devices and models are left out of the joint fit in turn. What their rows belong to and no other row
does is a new draw from its family. Members that were measured stand for what terms lack and are drawn to zero; so the
scale of new ones is the fitted one times a factor, one for the families of each kind of time, the least at which the
intervals of all left-out rows of that kind hold their share.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlsim.costs.operators.groups import series
from rlsim.evidence.hierarchy import DEGREES, GROUP_DEGREES, Design, Spreads, Weights, solve
from rlsim.projection.uncertainty.evidence import Evidence
from rlsim.units import BoolArray, FloatArray

HEADS: Mapping[str, tuple[str, ...]] = {
    "iteration": ("engine",),
    "training": ("train", "term: framework"),
    "transfer": ("transfer", "term: transfer"),
    "step": ("rollout release", "rollout of model", "term: rollout"),
}
"""Beginnings of the families whose factor each kind of time decides; steps last, which hold the others.

What a layout of RL steps has for itself ("rollout of run") keeps its fitted spread: every layout is new, and with a
tenth of the runs left out their intervals hold 89 % so, 82 % at half of it.
"""
SHARE = 0.9
FACTORS = np.geomspace(0.25, 2.0, 43)
"""Tried from the least on, which is what RL steps take: 57 of them hold their share with so little from new members."""
DRAWS = 400
MOST_ROWS = 250
"""Rows of a left-out group and kind that are looked at: the loads of an engine are many and alike."""


def software(row: Evidence) -> str:
    """Engine or framework of a row."""
    return str(row.about.get("engine") or row.about.get("framework") or "")


def _release(row: Evidence) -> str:
    release = str(row.about.get("release", ""))
    return f"{software(row)} {series(release)}" if release else ""


def _device(row: Evidence) -> str:
    # Boards and racks of a chip (gb300_nvl72, "GB300 NVL72") are left out together: either would inform the other.
    return str(row.about.get("device", "")).split("_")[0].split(" ")[0].lower()


OF_WIDTH: Mapping[str, Callable[[Evidence], str]] = {
    "release": _release,
    "device": _device,
    "model": lambda row: str(row.about.get("model", "")).lower(),
}
"""What is left out to find them: the group of a row by each grouping, "" for none."""


@dataclass(frozen=True)
class _LeftOut:
    """Rows of one kind in one left-out group. fixed: draws but for new members, shape (rows, DRAWS); new: coefficients
    of new members; families: theirs."""

    log_error: FloatArray
    fixed: FloatArray
    new: FloatArray
    families: Sequence[str]

    def inside(self, scales: FloatArray, generator: np.random.Generator) -> BoolArray:
        """Mask of the rows that lie inside their intervals where new members have ``scales``."""
        drawn = generator.standard_t(GROUP_DEGREES, (len(scales), DRAWS))
        below = np.mean(self.fixed + self.new @ (scales[:, None] * drawn) < self.log_error[:, None], axis=1)
        return np.asarray((below >= (1 - SHARE) / 2) & (below <= (1 + SHARE) / 2))


def with_new_scales(design: Design, spreads: Spreads, weights: Weights, rows: Sequence[Evidence]) -> Spreads:
    """``spreads`` with the factors of new members, from the ``rows`` of ``design``."""
    parts: dict[str, list[_LeftOut]] = {kind: [] for kind in HEADS}
    for group in OF_WIDTH.values():
        names = np.array([group(row) for row in rows])
        for name in sorted(set(names.tolist()) - {""}):
            for kind, part in _left_out(design, spreads, weights, names == name):
                parts[kind].append(part)
    found: dict[str, float] = {}
    for kind, heads in HEADS.items():
        if parts[kind]:
            tried = (dict.fromkeys(heads, round(factor, 3)) for factor in FACTORS.tolist())
            # Factors of the kinds before stay: steps hold groups of engines, trainers and transfers too.
            enough = (new for new in tried if _held(parts[kind], replace(spreads, new=found | new)) >= SHARE)
            found |= next(enough, dict.fromkeys(heads, round(FACTORS[-1], 3)))
    return replace(spreads, new=found)


def _left_out(design: Design, spreads: Spreads, weights: Weights, left_out: BoolArray) -> list[tuple[str, _LeftOut]]:
    found, informed = solve(design, spreads, weights, ~left_out), design.informed(~left_out)
    kinds, generator, out = np.array(design.kinds), np.random.default_rng(0), []
    for kind in HEADS:
        mine = np.flatnonzero(left_out & (kinds == kind))
        if not len(mine):
            continue
        mine = mine if len(mine) <= MOST_ROWS else np.sort(generator.choice(mine, MOST_ROWS, replace=False))
        matrix = design.matrix[mine]
        known = np.where(informed, matrix, 0.0)
        new = np.flatnonzero(~informed & (np.abs(matrix).sum(axis=0) > 0))
        middle = known @ found.mean + matrix[:, new] @ design.middle[new]
        fixed = middle[:, None] + np.sqrt(found.variances(known))[:, None] * generator.standard_normal(DRAWS)
        fixed += design.scales(spreads)[mine][:, None] * generator.standard_t(DEGREES, (len(mine), DRAWS))
        out.append((kind, _LeftOut(design.log_error[mine], fixed, matrix[:, new], design.families_of[new].tolist())))
    return out


def _held(parts: Sequence[_LeftOut], spreads: Spreads) -> float:
    """Share of the rows of all ``parts`` that lie inside their intervals."""
    # The same draws at every factor: only the factor decides how many rows are inside.
    generator = np.random.default_rng(0)
    inside = [part.inside(np.array([spreads.of_new(name) for name in part.families]), generator) for part in parts]
    return float(np.mean(np.concatenate(inside))) if inside else 0.0
