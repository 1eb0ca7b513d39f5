"""The catalogues: ``rlsim models`` and ``rlsim hardware``."""

from __future__ import annotations

from pathlib import Path

from rlsim.cli.groups import Commands
from rlsim.cli.output import print_answer, terminal_style

models = Commands(help="Model cards that come with rlsim.", no_args_is_help=True, rich_markup_mode=None)
hardware = Commands(help="Hardware profiles that come with rlsim.", no_args_is_help=True, rich_markup_mode=None)


@models.command("list")
def list_models() -> None:
    """List the model cards."""
    from rlsim.loading.models import list_cards

    print_answer("\n".join(list_cards()))


@models.command("show")
def show_model(name: str) -> None:
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
        measured = profile.operator_tables
        engines = ", ".join(engine for system, engine in known if system == measured)
        told = (
            f"measured tables ({engines})"
            if measured == profile.name
            else f"measured tables of {measured}, carried over"
        )
        rates = profile.memory_bandwidth_bytes_per_s.value / TERA, profile.bf16_flops.value / TERA
        memory = f"{profile.memory_bytes.value / GIB:.0f}"
        rows.append((profile.name, memory, f"{rates[0]:.2f}", f"{rates[1]:,.0f}", told if measured else "datasheet"))
    heads = ("name", "GiB", "TB/s", "BF16 TFLOP/s", "rests on")
    print_answer("\n".join(table(heads, rows, terminal_style(), "<>>><")))


@hardware.command("new")
def new_hardware(
    name: str,
    memory_gib: float,
    bandwidth: float,
    bf16: float,
    fp8: float | None = None,
    link: float = 64.0,
    gpus: int = 8,
    power: float = 700.0,
    price: float = 2.0,
    out: Path | None = None,
) -> None:
    """Write a commented hardware profile from eight numbers of a datasheet; an existing file stays."""
    from rlsim.files.reading import shown_path
    from rlsim.tables.new_profile import Datasheet, write_profile

    sheet = Datasheet(memory_gib, bandwidth, bf16, fp8 or bf16, link, gpus, power, price)
    path = shown_path(write_profile(name, sheet, out))
    print_answer(f"written: {path}; rlsim project quickstart hardware={path}")


@hardware.command("show")
def show_hardware(name: str) -> None:
    """Print a hardware profile, every value with its source."""
    from rlsim.files.yaml import dump_yaml
    from rlsim.tables.profile import load_profile

    print_answer(dump_yaml(load_profile(name)))
