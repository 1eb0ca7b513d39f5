"""``rlsim calibrate``: measure a device, import measured tables, or fit global parameters to measured steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlsim.datafiles import data_folder
from rlsim.errors import InputError
from rlsim.outputs import staged_folder


class Origin(StrEnum):
    """Packages that measured tables can be imported from."""

    AICONFIGURATOR = "aiconfigurator"


OriginOption = Annotated[Origin | None, typer.Option("--from", help="Import the measured tables of a package.")]
SystemOption = Annotated[str, typer.Option(metavar="NAME", help="--from: system; --list shows them.")]
BackendOption = Annotated[str, typer.Option(metavar="ENGINE", help="--from: engine the tables were made with.")]
ListOption = Annotated[bool, typer.Option("--list", help="--from: list systems, engines, versions; write nothing.")]
DeviceOption = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="Measure cpu, cuda or cuda:N (needs PyTorch).")
]
QuickOption = Annotated[bool, typer.Option("--quick", help="--device: about a minute instead of ten.")]
CasesOption = Annotated[
    Path | None,
    typer.Option("--cases", metavar="FILE", help="Write what `python -m bench` measures on --device (cuda)."),
]
RestartOption = Annotated[bool, typer.Option("--restart", help="--device: forget what was measured before.")]
MeasurementsOption = Annotated[
    Path | None,
    typer.Option("--from-measurements", metavar="DIR", help="Make tables of what `python -m bench` wrote."),
]
NameOption = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the profile or parameters.")]
MergeOption = Annotated[
    str | None,
    typer.Option("--merge-over", metavar="ENGINE", help="--from-measurements: lay the rows over imported tables."),
]
StepsOption = Annotated[
    Path | None,
    typer.Option(
        "--from-steps", metavar="TABLE.csv", help="Fit host, training and refit parameters to measured steps."
    ),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="PATH", help="Folder (or file, with --from-steps) to write.")
]


def register(app: typer.Typer, say: Callable[[str], None] = print) -> None:
    """Add ``calibrate`` to ``app``; ``say`` prints an answer to stdout."""

    @app.command()
    def calibrate(
        origin: OriginOption = None,
        system: SystemOption = "gb200",
        backend: BackendOption = "vllm",
        only_list: ListOption = False,
        device: DeviceOption = None,
        cases: CasesOption = None,
        quick: QuickOption = False,
        restart: RestartOption = False,
        measurements: MeasurementsOption = None,
        merge_over: MergeOption = None,
        steps: StepsOption = None,
        name: NameOption = None,
        out: OutOption = None,
    ) -> None:
        """Make calibrations: one of --device, --cases, --from, --from-measurements, --from-steps.

        --device measures this machine (operators, host, engine steps) and checks the cost model against engine steps
        that no table holds; --cases writes what another machine is to measure. --from aiconfigurator imports measured
        tables (extra 'aic'). --from-steps fits the few global parameters that no operator table holds to RL steps that
        you measured; name the result in simulation.parameters.
        """
        ways = [origin is not None, device is not None or cases is not None, measurements is not None]
        if sum([*ways, steps is not None]) != 1:
            raise InputError("calibrate needs one of --device, --cases, --from, --from-measurements, --from-steps")
        if cases is not None:
            say(_write_cases(device or "cuda", quick, cases))
        elif origin is not None:
            say(_import(system, backend, only_list, out))
        elif device is not None:
            say(_measure(device, quick, restart, name, out))
        elif measurements is not None:
            say(_fit_measurements(measurements, name, merge_over, out))
        elif steps is not None:
            say(_fit_steps(steps, name, out))


def _import(system: str, backend: str, only_list: bool, out: Path | None) -> str:
    from rlsim.calibration.aiconfigurator import import_tables, list_systems

    if only_list:
        return "\n".join(f"{name:20s} {engine:8s} {version}" for name, engine, version in list_systems())
    target = out or data_folder("calibration")
    with staged_folder(target) as folder:
        report = import_tables(system, backend, folder)
    return replace(report, folder=target / report.system / report.backend).text()


def _write_cases(device: str, quick: bool, cases: Path) -> str:
    from rlsim.calibration.calibrate import write_case_list

    return write_case_list(device, quick, cases)


def _measure(device: str, quick: bool, restart: bool, name: str | None, out: Path | None) -> str:
    from rlsim.calibration.calibrate import calibrate_device

    folder = out or Path("calibration_" + device.replace(":", "_"))
    return calibrate_device(device, folder, quick, resume=not restart, name=name).text


def _fit_measurements(measurements: Path, name: str | None, merge_over: str | None, out: Path | None) -> str:
    from rlsim.calibration.calibrate import calibrate_measurements

    folder = out or (measurements if measurements.is_dir() else measurements.parent)
    return calibrate_measurements(measurements, folder, name, merge_over).text


def _fit_steps(table: Path, name: str | None, out: Path | None) -> str:
    import sys

    from rlsim.validation.fit_steps import fit_steps, to_yaml

    tell = (lambda line: print(line, file=sys.stderr)) if sys.stderr.isatty() else (lambda line: None)
    found = fit_steps(table, name=name, tell=tell)
    if out is None:
        return f"{found.text()}\n\n{to_yaml(found.parameters)}"
    with staged_folder(out.parent) as folder:
        (folder / out.name).write_text(to_yaml(found.parameters), encoding="utf-8")
    return f"{found.text()}\n\nwritten: {out}; use it with --set simulation.parameters={out}"
