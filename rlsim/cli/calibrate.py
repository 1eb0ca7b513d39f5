"""``rlsim calibrate``: measure a device, import measured tables, or fit global parameters to measured steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rlsim.cli import options as o
from rlsim.cli.output import print_answer, terminal_style
from rlsim.errors import InputError
from rlsim.outputs import staged_folder


def calibrate(
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
    name: o.ResultNameOption = None,
    out: o.CalibrationOption = None,
) -> None:
    """Make calibrations: one of --device, --cases, --from, --from-measurements, --from-steps, --from-iterations,
    --from-training, --from-transfers.

    --device measures this machine (operators, host, engine steps) and checks the cost model against engine steps
    that no table holds; --cases writes what another machine is to measure. --from aiconfigurator imports measured
    tables (extra 'aic'). --from-steps fits the few global parameters that no operator table holds to RL steps that
    you measured; name the result in simulation.parameters. --from-iterations fits host and graph terms of engines to
    measured iterations; name the result in simulation.engine_parameters. --from-training fits the terms
    of training steps by framework and release; name the result in simulation.training_parameters. --from-transfers
    (once for each table) fits weight transfers by framework; name the result in simulation.transfer_parameters.
    """
    ways = [origin is not None, device is not None or cases is not None, measurements is not None]
    ways += [steps is not None, iterations is not None, training is not None, bool(transfers)]
    if sum(ways) != 1:
        raise InputError(
            "calibrate needs one of --device, --cases, --from, --from-measurements, --from-steps, --from-iterations, "
            "--from-training, --from-transfers"
        )
    if cases is not None:
        print_answer(_write_cases(device or "cuda", quick, cases))
    elif origin is not None:
        print_answer(_import(system, backend, only_list, out))
    elif device is not None:
        print_answer(_measure(device, quick, restart, name, out))
    elif measurements is not None:
        print_answer(_fit_measurements(measurements, name, merge_over, out))
    else:
        print_answer(_fit(steps, iterations, training, transfers, name, out))


def _fit(
    steps: Path | None,
    iterations: Path | None,
    training: Path | None,
    transfers: list[Path] | None,
    name: str | None,
    out: Path | None,
) -> str:
    """The one fit that was asked for."""
    if steps is not None:
        return _fit_steps(steps, name, out)
    if iterations is not None:
        return _fit_iterations(iterations, name, out)
    if training is not None:
        return _fit_training(training, name, out)
    return _fit_transfers(transfers or [], name, out)


def _import(system: str, backend: str, only_list: bool, out: Path | None) -> str:
    from rlsim.calibration.aiconfigurator import import_tables, list_systems
    from rlsim.hardware.tables import tables_folder
    from rlsim.report.table import table

    if only_list:
        return "\n".join(table(("", "", ""), list_systems(), terminal_style(), "<"))
    target = out or tables_folder()
    with staged_folder(target) as folder:
        report = import_tables(system, backend, folder)
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
