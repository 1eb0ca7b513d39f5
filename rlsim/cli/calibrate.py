"""``rlsim calibrate``: measure a device, import measured tables, or fit global parameters to measured steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rlsim.cli import options as o
from rlsim.cli.output import print_answer, terminal_style
from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.files.writing import staged_folder


def calibrate(
    package: o.PackageArgument = None,
    origin: o.OriginOption = None,
    system: o.SystemOption = "gb200",
    backend: o.BackendOption = "vllm",
    only_list: o.ListOption = False,
    device: o.DeviceOption = None,
    cases: o.CasesOption = None,
    quick: o.QuickOption = False,
    restart: o.RestartOption = False,
    measurements: o.MeasurementsOption = None,
    merge_over: o.MergeOption = None,
    steps: o.StepTableOption = None,
    iterations: o.IterationTableOption = None,
    training: o.TrainingTableOption = None,
    transfers: o.TransferTableOption = None,
    jointly: o.JointTablesOption = None,
    curves: o.CurveTableOption = None,
    draft_length: o.CurveDraftsOption = 3,
    within: o.WithinOption = 0.1,
    refit: o.RefitOption = False,
    name: o.ResultNameOption = None,
    out: o.CalibrationOption = None,
) -> None:
    """Make calibrations: one of --device, --cases, --from..., --jointly.

    --device measures this machine, --cases writes what another machine is to measure, --from aiconfigurator imports
    measured tables (extra 'aic'), --from aisimulate WHEEL|DIR those of recurrent layers and sparse attention.
    --from-steps takes a few times that you measured (of any kind) as evidence on top of all others; name the result in
    simulation.posterior; with --refit it fits the few global parameters that no table holds (simulation.parameters).
    --from-iterations fits host and graph terms of engines (simulation.engine_parameters), --from-training those of
    training steps (training_parameters), --from-transfers weight transfers (transfer_parameters), --from-curves
    acceptance over draft length, position and step (speculation). --jointly fits what all tables share, into --out.
    """
    if package is not None and origin is not o.Origin.AISIMULATE:
        raise InputError(f"{shown_path(package)}: a wheel or folder belongs to --from aisimulate")
    tables = [steps, iterations, training, transfers or None, jointly or None, curves]
    _check_one_way([origin, device or cases, measurements, *tables], refit and steps is None)
    if cases is not None:
        print_answer(_write_cases(device or "cuda", quick, cases))
    elif origin is not None:
        print_answer(_import(origin, package, (system, backend), only_list, out))
    elif device is not None:
        print_answer(_measure(device, quick, restart, name, out))
    elif measurements is not None:
        print_answer(_fit_measurements(measurements, name, merge_over, out))
    elif curves is not None:
        print_answer(_fit_curves(curves, draft_length, within, out))
    else:
        print_answer(_fit((steps, iterations, training), transfers, jointly, name, out, refit))


def _check_one_way(ways: Sequence[object], stray_refit: bool) -> None:
    """Raise InputError unless exactly one of ``ways`` is given."""
    if sum(way is not None for way in ways) != 1:
        raise InputError(
            "calibrate needs one of --device, --cases, --from, --from-measurements, --from-steps, --from-iterations, "
            "--from-training, --from-transfers, --from-curves, --jointly"
        )
    if stray_refit:
        raise InputError("--refit belongs to --from-steps")


def _fit(
    tables: tuple[Path | None, Path | None, Path | None],
    transfers: list[Path] | None,
    jointly: list[Path] | None,
    name: str | None,
    out: Path | None,
    refit: bool,
) -> str:
    """The one fit that was asked for: of tables of steps, iterations or training, of transfers, or of all together."""
    steps, iterations, training = tables
    if jointly:
        return _fit_jointly(jointly, out)
    if steps is not None:
        return _fit_steps(steps, name, out) if refit else _learn(steps, name, out)
    if iterations is not None:
        return _fit_iterations(iterations, name, out)
    if training is not None:
        return _fit_training(training, name, out)
    return _fit_transfers(transfers or [], name, out)


def _import(origin: o.Origin, package: Path | None, wanted: tuple[str, str], only_list: bool, out: Path | None) -> str:
    from rlsim.calibration import aiconfigurator, aisimulate
    from rlsim.report.table import table
    from rlsim.tables.operators import tables_folder

    if origin is o.Origin.AISIMULATE and package is None:
        raise InputError("--from aisimulate needs the package: rlsim calibrate --from aisimulate WHEEL|DIR")
    if only_list:
        listed = aiconfigurator.list_systems() if package is None else aisimulate.list_systems(package)
        return "\n".join(table(("", "", ""), listed, terminal_style(), "<"))
    target = out or tables_folder()
    with staged_folder(target) as folder:
        if package is None:
            report = aiconfigurator.import_tables(*wanted, folder)
        else:
            report = aisimulate.import_tables(*wanted, folder, package, beside=target)
    return replace(report, folder=target / report.folder.relative_to(folder)).text()


def _write_cases(device: str, quick: bool, cases: Path) -> str:
    from rlsim.calibration.calibrate import write_case_list

    return write_case_list(device, quick, cases)


def _measure(device: str, quick: bool, restart: bool, name: str | None, out: Path | None) -> str:
    from rlsim.calibration.calibrate import calibrate_device

    folder = out or Path("calibration_" + device.replace(":", "_"))
    return calibrate_device(device, folder, quick, resume=not restart, name=name, style=terminal_style()).text


def _fit_measurements(measurements: Path, name: str | None, merge_over: str | None, out: Path | None) -> str:
    from rlsim.calibration.calibrate import calibrate_measurements

    folder = out or (measurements if measurements.is_dir() else measurements.parent)
    return calibrate_measurements(measurements, folder, name, merge_over, terminal_style()).text


def _learn(table: Path, name: str | None, out: Path | None) -> str:
    from rlsim.parameters.posterior import SUFFIX
    from rlsim.validation.own_rows import learn

    if out is not None and out.suffix != SUFFIX:
        raise InputError(f"{shown_path(table)}: --out {out} must end in {SUFFIX}; with --refit in .yaml")
    found = learn(table, name, _teller())
    told = found.text(terminal_style())
    if out is None:
        return f"{told}\n\nnot written; --out mine{SUFFIX} keeps what they say for simulation.posterior"
    with staged_folder(out.parent) as folder:
        (folder / out.name).write_bytes(found.posterior.to_bytes())
    return f"{told}\n\nwritten: {out}; use it with --set simulation.posterior={out}"


def _fit_jointly(tables: list[Path], out: Path | None) -> str:
    from rlsim.parameters.posterior import EVIDENCE
    from rlsim.validation.fit_jointly import fit_jointly

    found, target = fit_jointly(tables, tell=_teller()), out or Path("posterior")
    with staged_folder(target) as folder:
        (folder / "joint.npz").write_bytes(found.posterior.to_bytes())
        (folder / EVIDENCE).write_bytes(found.evidence.to_bytes())
    return f"{found.text(terminal_style())}\n\nwritten: {target / 'joint.npz'} and {target / EVIDENCE}"


def _fit_steps(table: Path, name: str | None, out: Path | None) -> str:
    from rlsim.validation.fit_steps import fit_steps, to_yaml

    found = fit_steps(table, name=name, tell=_teller())
    return _written(found.text(terminal_style()), to_yaml(found.parameters), "parameters", out)


def _fit_iterations(table: Path, name: str | None, out: Path | None) -> str:
    from rlsim.validation.fit_iterations import fit_iterations
    from rlsim.validation.measured_text import render_measured

    found = fit_iterations(table, name=name, tell=_teller())
    return _written(render_measured(found.table, terminal_style()), found.to_yaml(), "engine_parameters", out)


def _fit_training(table: Path, name: str | None, out: Path | None) -> str:
    from rlsim.validation.fit_training import fit_training
    from rlsim.validation.measured_text import render_measured

    found = fit_training(table, name=name, tell=_teller())
    told = f"{render_measured(found.table, terminal_style())}\n\n{found.held_out_text()}"
    return _written(told, found.to_yaml(), "training_parameters", out)


def _fit_transfers(tables: list[Path], name: str | None, out: Path | None) -> str:
    from rlsim.validation.fit_transfers import fit_transfers
    from rlsim.validation.measured_text import render_measured

    found = fit_transfers(tables, name=name, tell=_teller())
    told = "\n\n".join([*(render_measured(table, terminal_style()) for table in found.tables), found.held_out_text()])
    return _written(told, found.to_yaml(), "transfer_parameters", out)


def _fit_curves(table: Path, draft_length: int, within: float, out: Path | None) -> str:
    from rlsim.validation.fit_curves import fit_curves

    found = fit_curves(table, draft_length, within)
    told, fitted = found.text(terminal_style()), found.to_yaml()
    if out is None:
        return f"{told}\n\n{fitted}"
    with staged_folder(out.parent) as folder:
        (folder / out.name).write_text(fitted, encoding="utf-8")
    return f"{told}\n\nwritten: {out}; its sections 'speculation' stand as in a scenario"


def _teller() -> Callable[[str], None]:
    """Says how far a fit is, on terminals."""
    return (lambda line: print(line, file=sys.stderr)) if sys.stderr.isatty() else (lambda line: None)


def _written(told: str, fitted: str, key: str, out: Path | None) -> str:
    """What a fit says, with its set below or written to ``out``."""
    if out is None:
        return f"{told}\n\n{fitted}"
    with staged_folder(out.parent) as folder:
        (folder / out.name).write_text(fitted, encoding="utf-8")
    return f"{told}\n\nwritten: {out}; use it with --set simulation.{key}={out}"
