"""Fit the deviations of users' runs: ``python -m research.user_runs [--write]``.

Rows of calibration/published/wild beside their predictions without any deviation give the entries of
calibration/users/wild.yaml. Phases whose time hangs on a network that nobody stated tell nothing of the software and
are left out. Each source is then predicted with a set that never saw it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from research.deviations import BROKEN, Deviation, fitted_deviations
from rlsim.costs.users import families
from rlsim.errors import Infeasible
from rlsim.evidence.published import published_table
from rlsim.evidence.tables import Row, read_table
from rlsim.evidence.wild import phases_of, predicted_phase, scenario_of_run
from rlsim.files.yaml import dump_yaml
from rlsim.loading.scenario import vary
from rlsim.parameters.users import load_user_runs, user_runs_path
from rlsim.projection.uncertainty.user_inputs import POINTS, host_curve, link_curve, trained_s
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.schema.base import changed
from rlsim.schema.users import LeftOut, UserFit, UserLink, UserRuns
from rlsim.tables.fingerprint import file_digest
from rlsim.units import FloatArray

RATES = np.geomspace(1e9, 4e11, 131)
"""Line rates of a node, in bytes/s and direction, that are tried for a cluster."""
PHASES = ("generation", "logprob", "train", "transfer")
UNSURE = 0.15
"""Change of the logarithm of a phase with a network 1.25 standard deviations away from which it hangs on it."""

WARM_UP = "holds compilation"
"""Part of a flag: a step that says nothing of those that follow."""


def table() -> list[Row]:
    """Rows of the published runs of users."""
    found = [record.cells for record in read_table(published_table("wild/steps.csv"), ("id", "source"))]
    return [row for row in found if _fits(row)]


def _fits(row: Row) -> bool:
    """Whether memory lets the run of a row be simulated; one that ran and is refused is said (rlsim validate)."""
    try:
        simulated(row, "none")
    except Infeasible as error:
        print(f"{row['id']}: {error}")
        return False
    return True


def project_name(source: str) -> str:
    """The project that a source is of: its sources are left out together."""
    return SAME.get(source.split(" (")[0], source.split(" (")[0])


SAME = {
    "file index 67482824811": "file index 67663506283",
    "file index 67294819185": "file index 67663506283",
}
"""Sources of one project's cluster (DeepSWE)."""


def simulated(row: Row, user_runs: str) -> SimulatedVariant:
    """The run of a row under a set of users' runs."""
    scenario = scenario_of_run(published_table("wild/steps.csv").parent, row["id"])
    return simulate_variant(vary(scenario, {"simulation.user_runs": user_runs}))


def bare(folder: Path, known: UserRuns) -> str:
    """Path of ``known`` without deviations."""
    path = folder / "bare.yaml"
    path.write_text(dump_yaml(changed(known, deviations=())), encoding="utf-8")
    return str(path)


def deviations(rows: Sequence[Row], user_runs: str) -> list[Deviation]:
    """What every source takes over its prediction, by phase and family."""
    ratios: dict[tuple[str, str, tuple[str, ...]], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if WARM_UP in row["flag"]:
            continue
        run = simulated(row, user_runs)
        if run.scenario.training_stack is None or run.scenario.training_stack.tuned:
            continue
        curve, hosts = link_curve(run), host_curve(run)
        for phase, measured in phases_of(row).items():
            if phase not in PHASES or max(map(abs, curve.get(phase, (0.0,))[1:4]), default=0.0) > UNSURE:
                continue
            predicted = predicted_phase(run, phase)
            if predicted is not None:
                key = phase, project_name(row["source"]), families(run.scenario, phase)
                log_ratio = math.log(measured / predicted.mean)
                ratios[key].append((log_ratio, _by_host(hosts.get(phase), log_ratio)))
    every = [
        Deviation(*key, float(np.mean(logs)), len(logs), float(np.mean(unsure)))
        for key, found in ratios.items()
        for logs, unsure in [tuple(zip(*found, strict=True))]
    ]
    return [one for one in every if abs(one.log_ratio) < BROKEN]


def _by_host(curve: Sequence[float] | None, log_ratio: float) -> float:
    """Standard deviation that an unknown host gives to the side of ``log_ratio``."""
    place = 3 if log_ratio > 0 else 1
    return 0.0 if curve is None else abs(curve[place] / POINTS[place])


def fitted_link(rows: Sequence[Row], user_runs: str, known: UserLink) -> UserLink:
    """``known`` with the rate of each source's cluster at which FSDP updates and log-probs come out as measured, by
    least squares of their logarithms, and what these are spread around.

    Dense models tell it: what experts take on FSDP is unsure by more than a link is.
    """
    errors: dict[str, FloatArray] = {}
    for row in rows:
        run = simulated(row, user_runs)
        if run.scenario.trainer.backend == "fsdp" and run.scenario.model.moe is None and link_curve(run):
            measured = phases_of(row)
            for place, rate in enumerate(RATES):
                found = trained_s(run, vary(run.scenario, {"cluster.node_bandwidth_bytes_per_s": float(rate)}))
                both = [math.log(found[phase] / measured[phase]) for phase in ("logprob", "train") if phase in measured]
                if both:
                    errors.setdefault(row["source"].split(" (")[0], np.zeros(len(RATES)))[place] += np.dot(both, both)
    new = {source: float(f"{RATES[int(np.argmin(error))]:.2g}") for source, error in errors.items()}
    sources = {row["source"].split(" (")[0] for row in rows}
    values = {name: rate for name, rate in known.values.items() if name not in sources} | new
    rates = list(values.values())
    spread = round(float(np.std(np.log(rates), ddof=1)), 1)
    return changed(known, values=values, bytes_per_s=float(np.median(rates)), log_spread=spread)


def fitted(known: UserRuns, found: Sequence[Deviation]) -> UserRuns:
    """``known`` with the entries that ``found`` give, rounded."""
    entries = [
        changed(one, **{name: round(getattr(one, name), 3) for name in ("mean", "above", "below")})
        for one in fitted_deviations(found)
    ]
    return changed(known, deviations=tuple(entries))


def left_out(
    rows: Sequence[Row], known: UserRuns, found: Sequence[Deviation], folder: Path
) -> Iterator[tuple[str, ...]]:
    """(source, id, phase, measured, predicted, low, high) of every value, its source left out of the fit."""
    for number, source in enumerate(dict.fromkeys(project_name(row["source"]) for row in rows)):
        rest = [one for one in found if one.source != source]
        path = folder / f"without_{number}.yaml"
        path.write_text(dump_yaml(fitted(known, rest)), encoding="utf-8")
        for row in rows:
            if project_name(row["source"]) == source:
                run = simulated(row, str(path))
                for phase, measured in phases_of(row).items():
                    value = predicted_phase(run, phase)
                    if value is not None:
                        yield source, row["id"], phase, measured, value.mean, value.low, value.high  # type: ignore[misc]


def scores(values: Sequence[tuple[str, ...]]) -> dict[str, LeftOut]:
    """Scores of left-out values by phase, and of all."""
    by: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for _, _, phase, measured, mean, low, high in values:
        entry = float(mean) / float(measured) - 1.0, float(low) <= float(measured) <= float(high)
        for name in (phase, "all"):
            by[name].append(entry)
    out = {}
    for name, found in by.items():
        errors = [error for error, _ in found]
        out[name] = LeftOut(
            values=len(found),
            median_error=round(float(np.median(np.abs(errors))), 3),
            bias=round(float(np.median(errors)), 3),
            coverage=round(float(np.mean([inside for _, inside in found])), 3),
        )
    return out


def show(new: UserRuns, found: Sequence[Deviation]) -> None:
    """Print the evidence, the entries and how left-out sources were met."""
    for one in sorted(found, key=lambda each: (each.phase, each.families)):
        print(f"{one.phase:10} {one.families[0]:32} {one.source:48} {one.log_ratio:+.2f} ({one.rows})")
    for entry in new.deviations:
        spread = f"{entry.mean:+.2f} +{entry.above:.2f} -{entry.below:.2f}"
        print(f"{entry.phase:10} {entry.family:32} {spread} ({entry.sources})")
    for phase, score in new.fit.left_out.items():
        print(f"left out: {phase:18} {score.values:3} {score.median_error:.0%} {score.bias:+.0%} {score.coverage:.0%}")


def main() -> None:
    """Fit, leave sources out, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    known, rows, path = load_user_runs(), table(), published_table("wild/steps.csv")
    assert known is not None
    with tempfile.TemporaryDirectory() as name:
        # What software adds is told by runs that no link binds; links are what then is left of the others.
        start = Path(name) / "software.yaml"
        start.write_text(dump_yaml(fitted(known, deviations(rows, bare(Path(name), known)))), encoding="utf-8")
        known = changed(known, node_link=fitted_link(rows, str(start), known.node_link))
        found = deviations(rows, bare(Path(name), known))
        new = fitted(known, found)
        values = list(left_out(rows, known, found, Path(name)))
    fit = UserFit(
        command="python -m research.user_runs --write",
        rows=len(rows),
        sources=len({project_name(row["source"]) for row in rows}),
        data_digest=file_digest(path),
        left_out=scores(values),
    )
    new = changed(new, fit=fit)
    show(new, found)
    if args.write:
        user_runs_path("wild").write_text(dump_yaml(new), encoding="utf-8")


if __name__ == "__main__":
    main()
