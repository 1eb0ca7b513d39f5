"""``rlsim calibrate``: measure a device, import measured tables, or fit to measured times."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from rlsim.cli.groups import Commands, FormerWords
from rlsim.cli.output import print_answer, terminal_style
from rlsim.errors import InputError
from rlsim.files.progress import ProgressLine
from rlsim.files.reading import shown_path
from rlsim.files.writing import staged_folder

app = Commands(cls=FormerWords, no_args_is_help=True, rich_markup_mode=None, help=__doc__)


class Origin(StrEnum):
    """Packages that measured tables can be imported from."""

    AICONFIGURATOR = "aiconfigurator"
    AISIMULATE = "aisimulate"


@app.command("device")
def device(
    name_of_device: str, quick: bool = False, restart: bool = False, name: str | None = None, out: Path | None = None
) -> None:
    """Measure a device of this machine; writes tables of its operators and a hardware profile.

    A CPU without --quick also as the real loop of bench/loop uses it (DIR/loop).
    """
    from rlsim.calibration.calibrate import calibrate_device

    folder = out or Path("calibration_" + name_of_device.replace(":", "_"))
    found = calibrate_device(name_of_device, folder, quick, resume=not restart, name=name, style=terminal_style())
    print_answer(found.text)
    if name_of_device == "cpu" and not quick:
        from rlsim.calibration.loop_stack import measure_stacks

        measure_stacks(folder / "loop", _say)
        print_answer(f"the loop of bench/loop: rlsim project {folder / 'loop' / 'loop.yaml'}")


@app.command("check-loop")
def check_loop(as_json: bool = False, out: Path | None = None, measured: bool = False) -> None:
    """Predict a small real RL loop, run it (needs PyTorch), and compare: 17 configurations in under ten minutes.

    --out DIR (default: loop_check) takes measurements, profile, stacks, journals, check.json and check.png.
    """
    from rlsim.evidence.loop.check import check_loop as checked
    from rlsim.report.figures.validation import loop_check_figure
    from rlsim.report.folder import write_files
    from rlsim.report.text.validation import loop_check_text

    folder = out or Path("loop_check")
    folder.mkdir(parents=True, exist_ok=True)
    with ProgressLine("configurations") as progress:

        def say(done: int, total: int, line: str) -> None:
            progress.remark = line
            progress.reach(done, total)

        found = checked(folder, say, measured)
    text = loop_check_text(found)
    write_files({"check.json": found.to_json(), "check.txt": text, "check.png": loop_check_figure(found)}, folder)
    print_answer(found.to_json() if as_json else loop_check_text(found, terminal_style()))


@app.command("cases")
def cases(path: Path, device: str = "cuda", quick: bool = False) -> None:
    """Write what a machine without rlsim is to measure."""
    from rlsim.calibration.calibrate import write_case_list

    print_answer(write_case_list(device, quick, path))


@app.command("measurements")
def measurements(path: Path, name: str | None = None, merge_over: str | None = None, out: Path | None = None) -> None:
    """Make operator tables and a hardware profile of measurements."""
    from rlsim.calibration.calibrate import calibrate_measurements

    folder = out or (path if path.is_dir() else path.parent)
    print_answer(calibrate_measurements(path, folder, name, merge_over, terminal_style()).text)


@app.command("import")
def import_tables(
    origin: Origin,
    package: Path | None = None,
    system: str = "gb200",
    backend: str = "vllm",
    only_list: bool = False,
    out: Path | None = None,
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
    print_answer(replace(report, folder=target / report.folder.relative_to(folder)).text())


@app.command("fit")
def fit(tables: list[Path], name: str | None = None, out: Path | None = None) -> None:
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
    posterior = replace(found.posterior, name=name) if name else found.posterior
    write_files({"joint.npz": posterior.to_bytes(), EVIDENCE: found.evidence.to_bytes()}, target)
    written = f"written: {target / 'joint.npz'} and {target / EVIDENCE}"
    print_answer(f"{joint_text(found, terminal_style())}\n\n{written}")


@app.command("training")
def training(tables: list[Path], name: str | None = None, out: Path | None = None) -> None:
    """Fit the terms of training steps to measured ones, within physical bounds; before `calibrate fit`."""
    from rlsim.evidence.trained_terms import fit_terms
    from rlsim.files.yaml import dump_yaml

    if out is not None and out.suffix != ".yaml":
        raise InputError(f"--out {out} must end in .yaml")
    fitted = dump_yaml(fit_terms(tables, name, _say))
    _print_kept(out, fitted, f"written: {out}; its terms stand in simulation.training_parameters={out}", fitted)


@app.command("own")
def own(path: Path, name: str | None = None, out: Path | None = None) -> None:
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
    _print_kept(out, found.posterior.to_bytes(), written, otherwise)


@app.command("curves")
def curves(path: Path, out: Path | None = None) -> None:
    """Fit acceptance over draft length and position to curves of your draft model (speculation)."""
    from rlsim.evidence.acceptance import fit_curves
    from rlsim.report.text.validation import curves_text

    found = fit_curves(path)
    text, fitted = curves_text(found, terminal_style()), found.to_yaml()
    written = f"{text}\n\nwritten: {out}; its sections 'speculation' stand as in a scenario"
    _print_kept(out, fitted, written, f"{text}\n\n{fitted}")


def _print_kept(out: Path | None, content: str | bytes, written: str, otherwise: str) -> None:
    """Write what was found where ``out`` is given, and say so."""
    from rlsim.report.folder import write_files

    if out is not None:
        write_files({out.name: content}, out.parent)
    print_answer(otherwise if out is None else written)


def _say(line: str) -> None:
    """Say how far a fit is, on terminals."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr)
