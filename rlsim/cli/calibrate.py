"""``rlsim calibrate``: measure a device, import measured tables, or fit to measured times."""

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from rlsim.cli.options import AsJson, OutFile, OutFolder, ProfileName, Quick
from rlsim.cli.output import print_answer, terminal_style
from rlsim.errors import InputError
from rlsim.files.progress import ProgressLine
from rlsim.files.reading import shown_path
from rlsim.files.writing import staged_folder

app = typer.Typer(no_args_is_help=True)


class Origin(StrEnum):
    """Packages that measured tables can be imported from."""

    AICONFIGURATOR = "aiconfigurator"
    AISIMULATE = "aisimulate"


@app.callback(invoke_without_command=True)
def calibrate(
    context: typer.Context,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Measure cpu, cuda or cuda:N (needs PyTorch).")
    ] = None,
    quick: Quick = False,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what was measured before.")] = False,
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=1.0, help="Stop then; the same command continues.")
    ] = None,
    name: ProfileName = None,
    out: OutFolder = None,
) -> None:
    """Measure a device of this machine, import measured tables, or fit to measured times.

    --device writes tables of the device's operators and a hardware profile; a CPU without --quick is also measured as
    the real loop of bench/loop uses it (DIR/loop).
    """
    if context.invoked_subcommand is not None:
        return
    if device is None:
        raise InputError("calibrate: needs --device cpu, cuda or cuda:N, or a command (see rlsim calibrate --help)")
    # A colon is no part of a file name on Windows.
    _measure(device, out or Path("calibration_" + device.replace(":", "_")), quick, restart, name, budget)


def _measure(device: str, folder: Path, quick: bool, restart: bool, name: str | None, budget_s: float | None) -> None:
    from rlsim.calibration.calibrate import calibrate_device

    found = calibrate_device(
        device, folder, quick, resume=not restart, name=name, style=terminal_style(), budget_s=budget_s
    )
    print_answer(found.text)
    if device == "cpu" and not quick:
        from rlsim.calibration.loop_stack import measure_stacks

        measure_stacks(folder / "loop", _say)
        print_answer(f"the loop of bench/loop: rlsim project {folder / 'loop' / 'loop.yaml'}")


@app.command("check-loop")
def check_loop(
    as_json: AsJson = False,
    out: OutFolder = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = "cpu",
    measured: Annotated[bool, typer.Option("--measured", help="Take the measurements that lie in DIR.")] = False,
    ran: Annotated[bool, typer.Option("--ran", help="Take measurements and journals that lie in DIR.")] = False,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only write what `python -m bench.loop --settings` is to run.")
    ] = None,
) -> None:
    """Predict a small real RL loop, run it (needs PyTorch), and compare: 17 configurations in under ten minutes.

    --out DIR (default: loop_check) takes measurements, profile, stacks, journals, check.json and check.png.
    """
    from rlsim.evidence.loop.check import settings_to_run

    if device not in ("cpu", "cuda"):
        raise InputError(f"--device {device}: the loop runs on cpu or cuda")
    if settings is not None:
        _write_or_print(settings, settings_to_run(device), f"written: {settings}", "")
        return
    from rlsim.evidence.loop.check import check_loop as checked
    from rlsim.report.figures.validation import loop_check_figure
    from rlsim.report.folder import write_files
    from rlsim.report.text.validation import loop_check_text

    folder = out or Path("loop_check")
    # Made before minutes of measuring: a folder that cannot be is an error at once.
    folder.mkdir(parents=True, exist_ok=True)
    with ProgressLine("configurations") as progress:

        def say(done: int, total: int, line: str) -> None:
            progress.remark = line
            progress.reach(done, total)

        found = checked(folder, say, measured, device, ran)
    # The file gets plain text; below it is what the terminal can show.
    text = loop_check_text(found)
    write_files({"check.json": found.to_json(), "check.txt": text, "check.png": loop_check_figure(found)}, folder)
    print_answer(found.to_json() if as_json else loop_check_text(found, terminal_style()))


@app.command("cases")
def cases(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What `python -m bench` is to measure.")],
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N.")] = "cuda",
    quick: Quick = False,
) -> None:
    """Write what a machine without rlsim is to measure."""
    from rlsim.calibration.calibrate import write_case_list

    print_answer(write_case_list(device, quick, path))


@app.command("measurements")
def measurements(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="What `python -m bench` wrote.")],
    name: ProfileName = None,
    merge_over: Annotated[str | None, typer.Option(metavar="ENGINE", help="Lay the rows over imported tables.")] = None,
    out: OutFolder = None,
) -> None:
    """Make operator tables and a hardware profile of measurements."""
    from rlsim.calibration.calibrate import calibrate_measurements

    folder = out or (path if path.is_dir() else path.parent)
    print_answer(calibrate_measurements(path, folder, name, merge_over, terminal_style()).text)


@app.command("import")
def import_tables(
    origin: Annotated[Origin, typer.Argument(help="Package whose measured tables are imported.")],
    package: Annotated[Path | None, typer.Argument(metavar="[WHEEL|DIR]", help="Of aisimulate.")] = None,
    system: Annotated[str, typer.Option(metavar="NAME", help="System; --list shows them.")] = "gb200",
    backend: Annotated[str, typer.Option(metavar="ENGINE", help="Engine the tables were made with.")] = "vllm",
    only_list: Annotated[bool, typer.Option("--list", help="List systems, engines, versions; write nothing.")] = False,
    out: OutFolder = None,
) -> None:
    """Import measured operator tables: aiconfigurator (extra 'aic'), or aisimulate WHEEL|DIR for recurrent layers."""
    from rlsim.calibration import aiconfigurator, aisimulate
    from rlsim.report.table import table
    from rlsim.tables.files import tables_folder

    if package is not None and origin is not Origin.AISIMULATE:
        raise InputError(f"{shown_path(package)}: a wheel or folder belongs to calibrate import aisimulate")
    if origin is Origin.AISIMULATE and package is None:
        raise InputError("import aisimulate needs the package: rlsim calibrate import aisimulate WHEEL|DIR")
    if only_list:
        listed = aiconfigurator.list_systems() if package is None else aisimulate.list_systems(package)
        print_answer("\n".join(table(("", "", ""), listed, terminal_style(), "<")))
        return
    target = out or tables_folder()
    with staged_folder(target) as folder:
        if package is None:
            report = aiconfigurator.import_tables(system, backend, folder)
        else:
            report = aisimulate.import_tables(system, backend, folder, package, beside=target)
    # The stage is moved to the target when it closes; the report names where its tables then lie.
    print_answer(replace(report, folder=target / report.folder.relative_to(folder)).text())


@app.command("fit")
def fit(
    tables: Annotated[list[Path], typer.Argument(metavar="TABLE.csv...", help="Measured times of every kind.")],
    name: ProfileName = None,
    out: OutFolder = None,
) -> None:
    """Fit all terms and deviations of groups jointly to measured steps, iterations, training steps and transfers.

    Writes joint.npz (for simulation.posterior) and evidence.npz into --out (default: posterior).
    """
    from rlsim.evidence.joint import fit_jointly
    from rlsim.parameters.posterior import EVIDENCE
    from rlsim.report.folder import write_files
    from rlsim.report.text.validation import joint_text

    target = out or Path("posterior")
    if target.suffix:
        raise InputError(f"--out {target}: the joint fit writes a folder with joint.npz, for simulation.posterior")
    found = fit_jointly(tables, _say)
    posterior = structs.replace(found.posterior, name=name) if name else found.posterior
    write_files({"joint.npz": posterior.to_bytes(), EVIDENCE: found.evidence.to_bytes()}, target)
    written = f"written: {target / 'joint.npz'} and {target / EVIDENCE}"
    print_answer(f"{joint_text(found, terminal_style())}\n\n{written}")


@app.command("training")
def training(
    tables: Annotated[list[Path], typer.Argument(metavar="TABLE.csv...", help="Measured training steps.")],
    name: ProfileName = None,
    out: OutFile = None,
) -> None:
    """Fit the terms of training steps to measured ones, within physical bounds; before `calibrate fit`."""
    from rlsim.evidence.trained_terms import fit_terms
    from rlsim.files.yaml import dump_yaml

    if out is not None and out.suffix != ".yaml":
        raise InputError(f"--out {out} must end in .yaml")
    fitted = dump_yaml(fit_terms(tables, name, _say))
    _write_or_print(out, fitted, f"written: {out}; its terms stand in simulation.training_parameters={out}", fitted)


@app.command("own")
def own(
    path: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="Your measured times, of any kind.")],
    name: ProfileName = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Posterior to write.")] = None,
) -> None:
    """Take a few times that you measured as evidence on top of all others; nothing is fitted again."""
    from rlsim.evidence.compare import learn
    from rlsim.parameters.posterior import SUFFIX
    from rlsim.report.text.validation import learned_text

    if out is not None and out.suffix != SUFFIX:
        raise InputError(f"{shown_path(path)}: --out {out} must end in {SUFFIX}")
    with ProgressLine("rows") as progress:
        found = learn(path, name, progress.reach)
    text = learned_text(found, terminal_style())
    written = f"{text}\n\nwritten: {out}; use it with --set simulation.posterior={out}"
    otherwise = f"{text}\n\nnot written; --out mine{SUFFIX} keeps what they say for simulation.posterior"
    _write_or_print(out, found.posterior.to_bytes(), written, otherwise)


@app.command("host")
def host(
    gpus: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="GPUs of this node that engines use.")] = 8,
    engine_gpus: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="GPUs of one engine.")] = 1,
    over: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Compare with another host, as --json gave it there.")
    ] = None,
    as_json: AsJson = False,
    out: OutFile = None,
) -> None:
    """Measure this machine as the host of engines in ten seconds, without a GPU: its class and engine.host_slowdown."""
    from rlsim.calibration.host import REFERENCE, measure_host
    from rlsim.report.text.host import host_section, host_text, ratio_text
    from rlsim.results.host import HostSpeed

    if out is not None and out.suffix != ".yaml":
        raise InputError(f"--out {out} must end in .yaml")
    other = None if over is None else HostSpeed.read(over)
    found = measure_host(gpus, engine_gpus)
    ratio = "" if other is None else f"\n\n{ratio_text(found, other)}"
    text = found.to_json() if as_json else host_text(found, REFERENCE, terminal_style()) + ratio
    written = text if as_json else f"{text}\n\nwritten: {out}; its section 'engine' stands as in a scenario"
    _write_or_print(out, host_section(found), written, text)


@app.command("curves")
def curves(
    path: Annotated[Path, typer.Argument(metavar="CURVES.csv", help="Acceptance over draft length or position.")],
    out: OutFile = None,
) -> None:
    """Fit acceptance over draft length and position to curves of your draft model (speculation)."""
    from rlsim.evidence.acceptance import fit_curves
    from rlsim.report.text.validation import curves_text

    found = fit_curves(path)
    text, fitted = curves_text(found, terminal_style()), found.to_yaml()
    written = f"{text}\n\nwritten: {out}; its sections 'speculation' stand as in a scenario"
    _write_or_print(out, fitted, written, f"{text}\n\n{fitted}")


def _write_or_print(out: Path | None, content: str | bytes, written: str, otherwise: str) -> None:
    """Write what was found where ``out`` is given, and say so."""
    from rlsim.report.folder import write_files

    if out is not None:
        write_files({out.name: content}, out.parent)
    print_answer(otherwise if out is None else written)


def _say(line: str) -> None:
    """Say how far a fit is, on terminals."""
    # Lines of progress would fill the log of a batch job.
    if sys.stderr.isatty():
        print(line, file=sys.stderr)
