"""Measured times as evidence: how far each lies from its prediction, what moves that, and what else shares its error.

One record for every measured iteration, training step, weight transfer, RL step and published phase of one. The record
holds derivatives of the prediction by every fitted term (docs/uncertainty.md), so that a fit, a fit without some
groups, or one with a few rows more is linear algebra.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from rlsim.costs.operators.groups import phase_groups, transfer_groups
from rlsim.costs.transfer.methods import TransferTerms
from rlsim.errors import RlsimError
from rlsim.evidence import Kind
from rlsim.evidence.engines import Load, engine_setup, groups_of, inputs_of, load_of, moved_hosts
from rlsim.evidence.phases import known_phases, phase_scenario
from rlsim.evidence.rollouts import UNIT as RATE
from rlsim.evidence.rollouts import rollout_slopes, run_of
from rlsim.evidence.rows import first_line, named
from rlsim.evidence.tables import STEP_COLUMNS, Row, SkippedRow, Table, number
from rlsim.evidence.training import trainer_row
from rlsim.evidence.transfers import framework_of, transfer_job, transfer_s
from rlsim.loading.scenario import vary
from rlsim.parameters.posterior import SUFFIX, Posterior
from rlsim.parameters.sets import Fitted
from rlsim.parameters.terms import moved, terms_of
from rlsim.projection.precision import precise
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence
from rlsim.projection.uncertainty.evidence import Kind as TimeKind
from rlsim.projection.uncertainty.learning import simulated_evidence, with_sets
from rlsim.projection.uncertainty.slopes import STEP, Slopes, point_changes_s
from rlsim.projection.variant import simulate_variant
from rlsim.results.validation import ComparedRow
from rlsim.schema.base import changed
from rlsim.schema.scenario import Scenario

About = Mapping[str, str | float]
ERRORS: Mapping[Kind, TimeKind] = {
    Kind.ITERATIONS: "iteration",
    Kind.TRAINING: "training",
    Kind.TRANSFERS: "transfer",
    Kind.ROLLOUTS: "iteration",
}
"""Kinds of tables whose rows are predicted without a simulated step, and the kind of time that they measure."""
REPLICATIONS = 2
"""Of each simulated step of a fit, which simulates every published one many times."""
MOST_SAMPLES = 65_536
"""Samples of one simulated step, more than any published one by a factor of ten."""
PHASES: tuple[TimeKind, ...] = ("generation", "logprob", "train", "refit")
Reasons = Mapping[str, str]
"""Why rows are left out, by id."""


Structure = tuple[Slopes, Mapping[str, float], About]
"""Derivatives of the logarithm of a row's prediction, coefficients of its groups, and what it ran."""
Usable = Callable[[ComparedRow], bool]


def was_predicted(row: ComparedRow) -> bool:
    """Whether the row has a prediction."""
    return row.predicted is not None


def structures(
    kind: Kind, rows: Sequence[ComparedRow], table: Table, fitted: Fitted, usable: Usable = was_predicted
) -> Iterator[tuple[int, Evidence]]:
    """Places of usable rows of a table of a kind in ERRORS (by default of all that were predicted), as evidence."""
    predicted = [(place, record.cells) for place, record in enumerate(table.rows) if usable(rows[place])]
    if kind is Kind.ITERATIONS:
        found = _iterations(rows, predicted, fitted)
    elif kind is Kind.ROLLOUTS:
        found = _rollouts(predicted, fitted, table.seed)
    else:
        structure = _training if kind is Kind.TRAINING else _transfer
        moves = _moves(fitted, *(("training/", "steps/") if kind is Kind.TRAINING else ("transfers/",)))
        found = ((place, structure(cells, fitted, moves)) for place, cells in predicted)
    for place, (slopes, groups, about) in found:
        row = rows[place]
        # A logarithm needs both above 0.
        if row.measured and row.predicted:
            measured_s, predicted_s = (_seconds(row, value) for value in (row.measured, row.predicted))
            log_error = float(np.log(measured_s / predicted_s))
            yield place, Evidence(ERRORS[kind], row.id, log_error, slopes, groups, {**about, MEASURED_S: measured_s})


def _seconds(row: ComparedRow, value: float) -> float:
    """Seconds that a measured or predicted value of a row stands for; of a rate those of the tokens of a GPU."""
    if row.unit == RATE:
        return float(row.details["tokens_per_gpu"] or 0.0) / value
    return value * (1e-3 if row.unit == "ms" else 1.0)


def _moves(fitted: Fitted, *heads: str) -> dict[str, Fitted]:
    """The sets with each term moved by STEP, of the terms whose names begin with one of ``heads``."""
    names = (term.name for term in terms_of(fitted))
    return {name: moved(fitted, {name: STEP}) for name in names if name.startswith(heads)}


def _iterations(
    rows: Sequence[ComparedRow], predicted: Sequence[tuple[int, Row]], fitted: Fitted
) -> Iterator[tuple[int, Structure]]:
    """Structure of every predicted iteration; all loads of an engine are priced at once."""
    moves = _moves(fitted, "engines/")
    by_setup: dict[Scenario, list[tuple[int, Load]]] = {}
    for place, cells in predicted:
        load = load_of(cells)
        by_setup.setdefault(engine_setup(cells, load), []).append((place, load))
    for setup, loads in by_setup.items():
        inputs = inputs_of(setup, fitted)
        batches = np.array([max(load.batch, 1.0) for _, load in loads])
        contexts = np.array([load.context_tokens for _, load in loads])
        base_s, changes_s = point_changes_s(inputs, batches, contexts, moved_hosts(inputs, moves))
        groups = _iteration_groups(setup)
        for at, (place, load) in enumerate(loads):
            row = rows[place]
            # What no host term changes of a predicted iteration: prefills between decode steps.
            other_s = 1e-3 * (row.predicted or 0.0) * tokens_of(row) - step_s_of(row)
            total_s = base_s[at] + other_s
            # Slopes of zero are left out: most terms belong to other engines.
            slopes = {name: float(change[at] / total_s) for name, change in changes_s.items() if change[at]}
            yield place, (slopes, groups, _about_iteration(setup, load))


def _rollouts(predicted: Sequence[tuple[int, Row]], fitted: Fitted, seed: int) -> Iterator[tuple[int, Structure]]:
    """Structure of every predicted rollout: slopes are sums over the iterations of its engines."""
    moves = _moves(fitted, "engines/")
    for place, cells in predicted:
        run = run_of(cells)
        slopes = rollout_slopes(run, fitted, moves, seed)
        yield place, (slopes, _iteration_groups(run.setup), _about_iteration(run.setup, run.load))


def tokens_of(row: ComparedRow) -> float:
    """Tokens that the measured time of an iteration's row is divided by."""
    return 1.0 if row.details["measured_step"] else float(row.details["acceptance_length"] or 1.0)


def step_s_of(row: ComparedRow) -> float:
    """Predicted seconds of the decode iteration itself."""
    return 1e-3 * float(row.details["step_predicted_ms"] or 0.0)


def _iteration_groups(setup: Scenario) -> dict[str, float]:
    engine, drafted = setup.engine, setup.speculation.draft_length
    layout = f"{engine.tensor_parallel} GPUs, DP {engine.attention_data_parallel}, EP {engine.expert_parallel}"
    runs = f"{setup.model.name.lower()}, {setup.hardware.name}, {engine.weight_precision}, {layout}"
    same = f"engine setup: {engine.name} {engine.version}, {runs} {f'k {drafted}' if drafted else ''}"
    return dict.fromkeys((*groups_of(setup), same), 1.0)


def _about_iteration(setup: Scenario, load: Load) -> About:
    engine = setup.engine
    return {
        "model": setup.model.name, "device": setup.hardware.name, "engine": engine.name,
        "release": engine.version or "", "gpus": float(engine.tensor_parallel),
        "expert_parallel": float(engine.expert_parallel),
        "attention_data_parallel": float(engine.attention_data_parallel),
        "precision": engine.weight_precision, "batch": load.batch, "context_tokens": load.context_tokens,
        "draft_length": float(setup.speculation.draft_length),
    }  # fmt: skip


def _transfer(cells: Row, fitted: Fitted, moves: Mapping[str, Fitted]) -> Structure:
    framework, job = framework_of(cells), transfer_job(cells)[0]
    base = transfer_s(cells, job, TransferTerms.of(fitted.transfers, framework))
    after = {name: transfer_s(cells, job, TransferTerms.of(sets.transfers, framework)) for name, sets in moves.items()}
    about: dict[str, str | float] = {
        "model": cells.get("model", "").split("/")[-1], "device": cells.get("gpu", ""), "framework": framework,
        "method": job.method, "gpus": float(job.sender.gpus + job.receiver.gpus),
    }  # fmt: skip
    return _slopes(base, after), dict.fromkeys(transfer_groups(framework, job.method, str(about["model"])), 1.0), about


def _training(cells: Row, fitted: Fitted, moves: Mapping[str, Fitted]) -> Structure:
    trainer = trainer_row(cells)
    now = trainer.overheads(fitted)
    # A step takes long to price; a set that leaves its overheads as they are has no slope.
    after = {name: trainer.seconds(sets) for name, sets in moves.items() if trainer.overheads(sets) != now}
    # With the deviation of its layout: what releases publish again of one is nearly one measurement.
    groups = dict.fromkeys(phase_groups(trainer.scenario)["train"], 1.0)
    scenario, sizes = trainer.scenario, ("tensor_parallel", "pipeline_parallel", "expert_parallel")
    about: About = {
        "model": scenario.model.name, "device": scenario.hardware.name, "framework": trainer.framework,
        "release": trainer.release or "", "gpus": float(scenario.cluster.num_gpus),
        "precision": scenario.trainer.precision, **{name: float(getattr(scenario.trainer, name)) for name in sizes},
        "sequence_tokens": float(scenario.workload.max_sequence_tokens),
    }  # fmt: skip
    return _slopes(trainer.seconds(fitted), after), groups, about


def _slopes(base_s: float, after_s: Mapping[str, float]) -> Slopes:
    """Derivatives of a time's logarithm from its values with each term moved by STEP."""
    return {name: float(np.log(after / base_s)) / STEP for name, after in after_s.items() if after != base_s}


def compared_times(
    kind: Kind, rows: Sequence[ComparedRow], table: Table, sets: Fitted, usable: Usable = was_predicted
) -> tuple[list[Evidence], Reasons]:
    """Rows of a table of iterations, training steps or transfers as evidence around ``sets``, in its order."""
    out = dict(structures(kind, rows, table, sets, usable))
    # Iterations come by engine, not by line.
    return [out[place] for place in sorted(out)], {row.id: row.skipped for row in rows if row.skipped}


def step_times(table: Table, sets: Fitted) -> tuple[list[Evidence], Reasons]:
    """Published RL steps and their phases as evidence of a fit around ``sets``, without group deviations.

    Phases of a row share the deviation of their run beside those of their groups. Rows that say ``in_fit`` false are
    left out.
    """

    def evidence(name: str, cells: Row) -> list[Evidence]:
        scenario, measured = _measured_step(cells, REPLICATIONS)
        steps, warmup = (4, scenario.loop.lag + 2) if scenario.loop.mode == "async" else (1, 0)
        simulation = changed(scenario.simulation, steps=steps, warmup_steps=warmup)
        run = simulate_variant(with_sets(changed(scenario, simulation=simulation), sets))
        return simulated_evidence(name, run, measured, phase_groups(scenario, name))

    return _each_step(table, evidence)


def own_step_times(table: Table, before: Posterior, now: Posterior | None = None) -> tuple[list[Evidence], Reasons]:
    """A user's RL steps and their phases as evidence on top of ``before``, the posterior that prices scenarios.

    Each is simulated as :func:`rlsim.projection.project.project` simulates its scenario, so that a measured time that
    equals the projection moves nothing. now: the posterior to price with instead, where deviations are not small.
    """
    with tempfile.TemporaryDirectory(prefix="rlsim-") as folder:
        posterior = now or before
        moves = {} if now is None else now.at(Path(folder) / f"own{SUFFIX}")

        def evidence(name: str, cells: Row) -> list[Evidence]:
            scenario, measured = _measured_step(cells, table.replications)
            run, groups = precise(simulate_variant(vary(scenario, moves))), phase_groups(scenario)
            return simulated_evidence(name, run, measured, groups, priced_with=posterior)

        rows, reasons = _each_step(table, evidence)
    return [_around(row, before, posterior) for row in rows], reasons


def _around(row: Evidence, before: Posterior, now: Posterior) -> Evidence:
    """The row, priced with the terms as ``now`` moves them, around those that ``before`` moves."""
    moved_by = sum(slope * (now.mean_of(name) - before.mean_of(name)) for name, slope in row.slopes.items())
    return replace(row, surprise=row.surprise + moved_by)


def _each_step(table: Table, evidence: Callable[[str, Row], list[Evidence]]) -> tuple[list[Evidence], Reasons]:
    """``evidence`` of every row by its name and cells, and why others are left out, by id."""
    out, reasons = list[Evidence](), dict[str, str]()
    for done, ((name, problem), record) in enumerate(zip(named(table), table.rows, strict=True), start=1):
        try:
            if problem or record.cells.get("in_fit", "").lower() == "false":
                raise SkippedRow(problem or "in_fit is false")
            out += evidence(name, record.cells)
        except (SkippedRow, RlsimError) as reason:
            # Ids may repeat in a table; the first keeps the plain name.
            reasons[f"{name}, line {record.line}" if name in reasons else name] = first_line(reason)
        table.report(done)
    return out, reasons


def _measured_step(cells: Row, replications: int | None) -> tuple[Scenario, Mapping[TimeKind, float]]:
    """Scenario of a row and measured seconds of its step and phases; a generation beside training is busy time."""
    complete = all(column in cells for column in STEP_COLUMNS)
    if complete and not number(cells, "total_step_time_s"):
        raise SkippedRow("total_step_time_s must be above 0")
    scenario = phase_scenario(cells, replications=replications)
    samples = scenario.workload.samples_per_step * scenario.workload.generated_batch_factor
    if samples > MOST_SAMPLES:
        raise SkippedRow(f"{samples:,.0f} samples in one step are more than {MOST_SAMPLES:,}")
    if complete:
        columns = {"step": "total_step_time_s"} | {phase: f"{phase}_s" for phase in PHASES}
        known = {kind: number(cells, column) for kind, column in columns.items() if cells.get(column, "").strip()}
    else:
        known = known_phases(cells)
    if scenario.loop.mode == "async":
        # Published generation of an asynchronous step runs beside training: it is no phase on its path.
        known.pop("generation", None)
    kinds: tuple[TimeKind, ...] = ("step", *PHASES)
    measured = {kind: known[kind] for kind in kinds if known.get(kind, 0.0) > 0}
    if not measured:
        raise SkippedRow("no time of it is given")
    return scenario, measured
