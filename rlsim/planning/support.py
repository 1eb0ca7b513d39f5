"""What backs a choice of model, device and engine: tables, fitted releases, measured runs, what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from rlsim.errors import Infeasible, InputError, RlsimError, shortened
from rlsim.files.yaml import lists_beside
from rlsim.loading.scenario import scenario_of_text, vary
from rlsim.parameters.terms import current
from rlsim.planning.new import Answers, whole_path, with_layout
from rlsim.projection.project import project
from rlsim.projection.uncertainty.evidence import load_evidence
from rlsim.projection.uncertainty.features import Feature
from rlsim.results.planning import Coverage, StepPart, TableSet, Tried
from rlsim.schema.engine import Engine
from rlsim.schema.engine_parameters import version_order
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.scenario import Scenario
from rlsim.tables.files import LAYOUTS, MEASURED, available, read_metadata, table_path, tables_folder
from rlsim.tables.profile import load_profile

ENGINES: tuple[str, ...] = get_args(Engine.model_fields["name"].annotation)
BATCH, RESPONSE_TOKENS = (64, 16), 2000
"""Batch and mean response of the scenario that is projected. Assumption, printed with the answer."""
SHAPE = f"{BATCH[0]} x {BATCH[1]} responses of {RESPONSE_TOKENS:,} tokens, BF16; another batch leans on other rows"
MOST_GPUS = 4096


def coverage(model: str, device: str, engine: str, gpus: int | None = None) -> Coverage:
    """What backs a model on a device with an engine, judged on a plain synchronous GRPO step.

    gpus: of the cluster; by default the fewest of 8, 16, 32... on which a layout fits. Raises InputError for unknown
    names and Infeasible where nothing fits.
    """
    if engine not in ENGINES:
        raise InputError(f"unknown engine '{shortened(engine)}'; known: {', '.join(ENGINES)}")
    profile = load_profile(device)
    text = _plain(model, device, engine, gpus)
    scenario = scenario_of_text(text, "the scenario", Path())
    answer = project(scenario)
    parts = sorted(answer.candidate.parts, key=lambda part: -part.seconds)
    return Coverage(
        model=scenario.model.name,
        device=profile.name,
        engine=engine,
        tables=_tables(profile, engine),
        releases=_releases(engine),
        counts=_counts(scenario),
        scenario=text,
        num_gpus=answer.num_gpus,
        provenance=answer.provenance,
        parts=tuple(StepPart(phase=one.phase, part=one.name, seconds=one.seconds, root=one.label) for one in parts),
        support=answer.support,
        tried=tuple(_tried(scenario)),
    )


def _releases(engine: str) -> dict[str, int]:
    """Measured iterations of each release of ``engine`` behind the shipped fit, oldest first."""
    posterior, begin = current().posterior, f"engine release: {engine} "
    rows = {} if posterior is None else posterior.rows
    found = {group.removeprefix(begin): count for group, count in rows.items() if group.startswith(begin)}
    # By numbers: as texts 0.10 comes before 0.9.
    return dict(sorted(found.items(), key=lambda one: version_order(one[0])))


def _plain(model: str, device: str, engine: str, gpus: int | None) -> str:
    """The scenario that is projected, on ``gpus`` or the fewest that hold it."""
    count = gpus or 8
    while True:
        answers = Answers(whole_path(model), device, count, BATCH, RESPONSE_TOKENS)
        try:
            return with_layout(answers, "support", Path(), engine).replace("{seed: 0}", "{seed: 0, replications: 2}")
        except Infeasible:
            count *= 2
            if gpus is not None or count > MOST_GPUS:
                raise


def _tables(profile: HardwareProfile, engine: str) -> TableSet | None:
    """The tables that a projection opens for the device: the engine's, else those measured without one."""
    system = profile.operator_tables
    found = next((tables for tables in ((system, engine), (system, MEASURED)) if tables in available()), None)
    if system is None or found is None:
        return None
    folder = tables_folder() / system / found[1]
    metadata = read_metadata(folder)
    operators = tuple(layout.name for layout in LAYOUTS if table_path(folder, layout).is_file())
    origin = f"{metadata['engine']} {metadata['engine_version']}"
    return TableSet(system=system, engine=found[1], origin=origin, operators=operators)


def _counts(scenario: Scenario) -> dict[str, dict[str, int]]:
    """Measured times of each kind by what they share with the scenario."""
    asked = {"model": scenario.model.name, "device": scenario.hardware.name}
    software = {"iteration": ("engine", scenario.engine.name)}
    out: dict[str, dict[str, int]] = {}
    for kind in ("iteration", "training", "transfer", "step"):
        key, name = software.get(kind, ("framework", scenario.refit_framework))
        rows, own = [row.about for row in load_evidence().rows if row.kind == kind], {**asked, key: name}
        shared = {"model, device and software": ("model", "device", key), "model and device": ("model", "device")}
        shared |= {"model": ("model",), "device": ("device",), "software": (key,), "any": ()}
        # Equal by the rules that distances go by.
        same = [{one for one in own if Feature(one, one).value(row) == Feature(one, one).value(own)} for row in rows]
        out[kind] = {what: sum(found.issuperset(names) for found in same) for what, names in shared.items()}
    return out


def _tried(scenario: Scenario) -> Iterator[Tried]:
    """Every feature on top of the scenario: the share of its time that is measured, or why it is refused."""
    for name, changed in lists_beside(__file__)["tried"].items():
        try:
            answer = project(vary(scenario, changed, "simulation.replications=1"))
        except RlsimError as error:
            # Without what precedes the first colon: the made-up scenario and its overrides, which say nothing here.
            yield Tried(name=name, reason=str(error).partition(": ")[2] or str(error), measured=None)
        else:
            yield Tried(name=name, reason="", measured=answer.provenance.measured)
