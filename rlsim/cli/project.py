"""``rlsim project`` and the catalogues: ``schema``, ``models``, ``hardware``."""

from __future__ import annotations

import typer

from rlsim.cli import options as o
from rlsim.cli.output import given_overrides, print_answer, terminal_style
from rlsim.files.progress import ProgressLine

models = typer.Typer(help="Model cards that come with rlsim.", no_args_is_help=True, rich_markup_mode=None)
hardware = typer.Typer(help="Hardware profiles that come with rlsim.", no_args_is_help=True, rich_markup_mode=None)


def project(
    scenario: o.ScenarioArgument,
    words: o.WordsArgument = None,
    overrides: o.SetOption = None,
    as_json: o.JsonOption = False,
    out: o.OutOption = None,
    seed: o.SeedOption = None,
    replications: o.ReplicationsOption = None,
    brief: o.BriefOption = False,
) -> None:
    """Project one RL step of a scenario.

    The autoregressive baseline stands beside the candidate, both on the same drawn work. Prints the phases of both,
    rollout and end-to-end speedup with 90 % intervals, memory, what bounds each phase, and how much of the time rests
    on measured, modelled and assumed values. --out DIR writes projection.json, phases.png, timeline.json (opens in
    Perfetto) and scenario.yaml (resolved).
    """
    from rlsim.loading.scenario import load_scenario
    from rlsim.projection.project import project as run
    from rlsim.report.files import write_out
    from rlsim.report.text.projection import render, render_brief

    given = load_scenario(scenario, _with_simulation(given_overrides(words, overrides), seed, replications))
    with ProgressLine("replications") as progress:
        answer = run(given, progress.reach)
    write_out(answer, out)
    written = render_brief if brief else render
    print_answer(answer.to_json() if as_json else written(answer, terminal_style()))


def _with_simulation(overrides: list[str], seed: int | None, replications: int | None) -> list[str]:
    given = {"simulation.seed": seed, "simulation.replications": replications}
    return [*overrides, *(f"{key}={value}" for key, value in given.items() if value is not None)]


def schema() -> None:
    """Print the JSON Schema of scenarios.

    Editors use it to complete and check scenario files.
    """
    import json

    from rlsim.loading.scenario import scenario_json_schema

    print_answer(json.dumps(scenario_json_schema(), indent=2))


@models.command("list")
def list_models() -> None:
    """List the model cards."""
    from rlsim.loading.models import list_cards

    print_answer("\n".join(list_cards()))


@models.command("show")
def show_model(name: o.NameArgument) -> None:
    """Print a model card with its parameter counts; NAME may be a Hugging Face config.json."""
    from rlsim.files.yaml import dump_yaml
    from rlsim.loading.models import load_card
    from rlsim.schema.model import parameter_counts

    card = load_card(name)
    counts = parameter_counts(card)
    print_answer(f"# {counts.total:,} parameters, {counts.active:,} active per token\n{dump_yaml(card)}")


@hardware.command("list")
def list_hardware() -> None:
    """List the hardware profiles."""
    from rlsim.tables.profile import list_profiles

    print_answer("\n".join(list_profiles()))


@hardware.command("show")
def show_hardware(name: o.NameArgument) -> None:
    """Print a hardware profile, every value with its source."""
    from rlsim.files.yaml import dump_yaml
    from rlsim.tables.profile import load_profile

    print_answer(dump_yaml(load_profile(name)))
