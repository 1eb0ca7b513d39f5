"""The catalogues: ``rlsim models`` and ``rlsim hardware``."""

from pathlib import Path
from typing import Annotated

import typer

from rlsim.cli.options import EntryName
from rlsim.cli.output import print_answer, terminal_style

models = typer.Typer(help="Model cards that come with rlsim.", no_args_is_help=True)
hardware = typer.Typer(help="Hardware profiles that come with rlsim.", no_args_is_help=True)


@models.command("list")
def list_models() -> None:
    """List the model cards."""
    from rlsim.loading.models import list_cards

    print_answer("\n".join(list_cards()))


@models.command("show")
def show_model(
    name: EntryName,
) -> None:
    """Print a model card with its parameter counts; NAME may be a Hugging Face config.json."""
    from rlsim.files.yaml import dump_yaml
    from rlsim.loading.models import load_card
    from rlsim.schema.model import parameter_counts

    card = load_card(name)
    counts = parameter_counts(card)
    print_answer(f"# {counts.total:,} parameters, {counts.active:,} active per token\n{dump_yaml(card)}")


@hardware.command("list")
def list_hardware() -> None:
    """List the hardware profiles: memory, its bandwidth, BF16 rate, and whether kernels were measured."""
    from rlsim.report.table import table
    from rlsim.tables.files import available
    from rlsim.tables.profile import list_profiles, load_profile
    from rlsim.units import GIB, TERA

    known, rows = available(), list[tuple[str, ...]]()
    for profile in map(load_profile, list_profiles()):
        # Tables may be those of another device, whose shares of the roofline are carried over.
        measured = profile.operator_tables
        engines = ", ".join(engine for system, engine in known if system == measured)
        basis = (
            f"measured tables ({engines})"
            if measured == profile.name
            else f"measured tables of {measured}, carried over"
        )
        rates = profile.memory_bandwidth_bytes_per_s.value / TERA, profile.bf16_flops.value / TERA
        memory = f"{profile.memory_bytes.value / GIB:.0f}"
        rows.append((profile.name, memory, f"{rates[0]:.2f}", f"{rates[1]:,.0f}", basis if measured else "datasheet"))
    heads = ("name", "GiB", "TB/s", "BF16 TFLOP/s", "rests on")
    print_answer("\n".join(table(heads, rows, terminal_style(), "<>>><")))


@hardware.command("new")
def new_hardware(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")],
    memory_gib: Annotated[float, typer.Option(metavar="GIB", help="Memory of a GPU.")],
    bandwidth: Annotated[float, typer.Option("--memory-gb-per-s", metavar="GB/S", help="Bandwidth of its memory.")],
    bf16: Annotated[float, typer.Option("--bf16-tflops", metavar="TFLOP/S", help="Dense BF16 rate.")],
    fp8: Annotated[float | None, typer.Option("--fp8-tflops", metavar="TFLOP/S", help="Dense FP8 rate.")] = None,
    link: Annotated[float, typer.Option("--link-gb-per-s", metavar="GB/S", help="NVLink or PCIe, a direction.")] = 64.0,
    gpus: Annotated[int, typer.Option("--gpus-per-node", metavar="N", help="GPUs of a node.")] = 8,
    power: Annotated[float, typer.Option("--power-w", metavar="W", help="Power limit.")] = 700.0,
    price: Annotated[float, typer.Option(metavar="USD", help="Price of a GPU hour.")] = 2.0,
    out: Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="File; default NAME.yaml.")] = None,
) -> None:
    """Write a commented hardware profile from eight numbers of a datasheet; an existing file stays."""
    from rlsim.files.reading import shown_path
    from rlsim.tables.new_profile import Datasheet, write_profile

    # A device without an FP8 rate computes such products in BF16.
    sheet = Datasheet(memory_gib, bandwidth, bf16, fp8 or bf16, link, gpus, power, price)
    path = shown_path(write_profile(name, sheet, out))
    print_answer(f"written: {path}; rlsim project quickstart hardware={path}")


@hardware.command("show")
def show_hardware(
    name: EntryName,
) -> None:
    """Print a hardware profile, every value with its source."""
    from rlsim.files.yaml import dump_yaml
    from rlsim.tables.profile import load_profile

    print_answer(dump_yaml(load_profile(name)))
