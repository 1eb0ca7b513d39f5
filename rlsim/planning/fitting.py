"""Whether a scenario fits into memory: what alone would make it fit, how far keys may grow, how many places of
environments are enough, and what a launcher asks before the job starts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rlsim.costs.memory import check_fits, evenly, memory_share, surely
from rlsim.errors import Infeasible, InputError
from rlsim.loading.overrides import value_at
from rlsim.loading.scenario import as_scenario
from rlsim.planning.evaluate import evaluate_means
from rlsim.planning.plan import plan
from rlsim.planning.space import SearchLimits, own_lag
from rlsim.projection.moves import varied
from rlsim.projection.precision import answered
from rlsim.projection.project import project
from rlsim.projection.variant import searched
from rlsim.results.fitting import Enough, EnoughPlaces, FreeKeys, Largest, Layout, Preflight
from rlsim.results.sweep import Plan
from rlsim.schema.scenario import Scenario
from rlsim.units import SECONDS_PER_HOUR

HALVINGS = 6
"""A setting is lowered to a sixty-fourth at most: below that nobody runs."""
SHARES = (0.95, 0.92, 0.88, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3)
"""Shares of a GPU's memory that are tried for an engine, the nearest to the stated one first."""
FREE = (
    "trainer.micro_batch_tokens", "trainer.micro_batch_samples", "workload.max_sequence_tokens",
    "engine.max_running_sequences", "engine.max_batched_tokens",
)  # fmt: skip
"""Keys that people raise until memory ends."""
STAND_INS = {
    "trainer.micro_batch_tokens": "workload.max_sequence_tokens",
    "trainer.logprob_micro_batch_tokens": "trainer.micro_batch_tokens",
    "engine.max_running_sequences": "released_engine.most_running",
    "engine.max_batched_tokens": "released_engine.budget_tokens",
}
"""Key or property that holds where a key is left to its default."""
NODES = "workload.agent.nodes.count"
PLACES = (
    "workload.agent.max_trajectories", "workload.agent.max_environments", "workload.agent.judge.concurrency", NODES,
)  # fmt: skip
"""Limits on what runs at once beside the engines: sandboxes, calls of tools, places of a judge, nodes of sandboxes."""
MOST_PLACES = 1_000_000
"""What each of them may be."""
TOLERANCE = 0.01
"""By how much a step may be longer than without a limit for that limit to be enough."""
FINENESS = 64
"""A limit is found to a part in so many of it: simulations of a hundredth more or less cannot be told apart."""
DOUBLINGS = 12
"""A whole number is raised to 4,096 times its value at most: nobody runs beyond that."""
HUNDREDTHS = 0.01
"""Shares are looked at in steps of one hundredth, as people write them."""


def fits(scenario: Scenario) -> bool:
    """Whether engine, trainer and host have room for ``scenario``."""
    return not refusal(scenario)


def refusal(scenario: Scenario) -> str:
    """Why engine, trainer or host have no room for ``scenario``; empty where they have."""
    try:
        check_fits(evenly(scenario))
    except Infeasible as error:
        return error.reason.partition(" (")[0]
    return ""


def largest_that_fit(scenario: Scenario | Path | str, keys: Sequence[str] = ()) -> FreeKeys:
    """How far each of ``keys`` alone may grow before ``scenario`` no longer fits or is none, the nearest limit first.

    keys: whole numbers or shares; default those of FREE that have a limit. What fits does so with the scenario's
    ``simulation.fit_probability``, by default SURE. Raises InputError for a key without such a value, Infeasible where
    the scenario does not fit so as it is.
    """
    scenario = surely(as_scenario(scenario))
    check_fits(scenario)
    named = [key for key in FREE if value_now(scenario, key) is not None] if not keys else list(dict.fromkeys(keys))
    found = sorted((_largest(scenario, key) for key in named), key=lambda one: one.room)
    found = [one for one in found if keys or one.limit]
    return FreeKeys(scenario=scenario.name, fit_probability=scenario.simulation.least_fit, keys=tuple(found))


def value_now(scenario: Scenario, key: str) -> object:
    """What holds of a key, also where it is left to its default; None where nothing does."""
    value = value_at(scenario, key)
    return value_now(scenario, STAND_INS[key]) if value is None and key in STAND_INS else value


def _largest(scenario: Scenario, key: str) -> Largest:
    if key == "engine.gpu_memory_utilization":  # what is safe depends on more than what fits
        raise InputError(f"--free {key}: rlsim size {scenario.name} names the largest safe share")
    now = value_now(scenario, key)
    if now is None:
        varied(scenario, {key: 1})  # a key that does not exist is answered with the nearest
    if isinstance(now, bool) or not isinstance(now, int | float) or now <= 0:
        raise InputError(f"--free {key}: its value is {now!r}; a number above 0 is needed, such as {FREE[0]}")

    def refused(value: float) -> str:
        try:
            return refusal(varied(scenario, {key: value}))
        except InputError as error:  # beyond what the key or a rule beside it allows
            return str(error)

    unit = 1 if isinstance(now, int) else HUNDREDTHS
    best, limit = _furthest(lambda count: refused(count * unit), round(now / unit))
    return Largest(key=key, now=now, largest=max(now, round(best * unit, 2)), limit=limit)


def _furthest(refusal: Callable[[int], str], now: int) -> tuple[int, str]:
    """The largest number that is not refused, and why the next one is; empty where none was found. Between ``now`` and
    it refusals are taken to begin once."""
    low, high, why = now, now, ""
    for _ in range(DOUBLINGS):
        low, high = high, 2 * high
        if why := refusal(high):
            break
    else:
        return high, ""
    while high - low > 1:
        middle = (low + high) // 2
        if found := refusal(middle):
            high, why = middle, found
        else:
            low = middle
    return low, why


def enough_places(
    scenario: Scenario | Path | str, keys: Sequence[str] = (), progress: Callable[[int], object] = abs
) -> EnoughPlaces:
    """The fewest places of each limit of PLACES with which a step is as short as without it, within TOLERANCE.

    keys: of PLACES; default those that the scenario states. Each alone, on the drawn work of a search; then all at
    once. progress: called with 1 for each simulation. Raises InputError for another key or where none is stated,
    Infeasible where the scenario cannot run.
    """
    scenario = as_scenario(scenario)
    for key in keys:
        if key not in PLACES:
            raise InputError(f"--enough {key}: is no limit on places; valid here: {', '.join(PLACES)}")
    named = [key for key in PLACES if value_at(scenario, key) is not None] if not keys else list(dict.fromkeys(keys))
    if not named:
        raise InputError(f"--enough: {scenario.name} states no limit on places ({', '.join(PLACES)})")
    base = searched(scenario)

    def step_s(changes: Mapping[str, int]) -> float:
        cell = evaluate_means(base, {**changes})
        progress(1)
        if cell.numbers is None:
            raise cell.error or InputError(f"{scenario.name}: cannot be simulated")
        return cell.numbers.step_s.mean

    # Carried over to the step that project answers: ratios on equal drawn work hardly depend on how much is drawn.
    now_s = answered(scenario).mean
    scale = now_s / step_s({})
    found = tuple(_enough(scenario, key, now_s, lambda changes: scale * step_s(changes)) for key in named)
    at_once = {one.key: one.enough for one in found}
    together_s = found[0].enough_step_s if len(found) == 1 else scale * step_s(at_once)
    return EnoughPlaces(scenario=scenario.name, tolerance=TOLERANCE, keys=found, together_step_s=together_s)


def _enough(scenario: Scenario, key: str, now_s: float, step_s: Callable[[Mapping[str, int]], float]) -> Enough:
    """By halving between one place and one for every trajectory that there can be at once."""
    now, lag = value_at(scenario, key), scenario.loop.lag if scenario.loop.mode == "async" else 0
    agent, most = scenario.workload.agent, 2 * scenario.workload.samples_per_step * (lag + 1)
    # Of nodes those that hold the sandboxes which are started beforehand alone are too few.
    low, each = 0, 1
    if key == NODES and agent and agent.nodes:
        low, each = agent.started_sandboxes, agent.nodes.sandboxes_each
    low, high = low // each, min(MOST_PLACES, -(-(most + low) // each))
    unlimited_s = seconds = step_s({key: high})
    while high - low > max(1, high // FINENESS):
        middle = (low + high) // 2
        if (there_s := step_s({key: middle})) <= (1 + TOLERANCE) * unlimited_s:
            high, seconds = middle, there_s
        else:
            low = middle
    return Enough(
        key=key, now=now if isinstance(now, int) else None, enough=high, now_step_s=now_s, enough_step_s=seconds,
        unlimited_step_s=unlimited_s,
    )  # fmt: skip


def preflight(scenario: Scenario | Path | str, layout: bool = True) -> Preflight:
    """What a launcher asks before a job starts: the step, memory with its probability, price, one faster layout.

    layout: search that layout, of the same GPUs, lag and draft length, so that the update is the same. Never raises
    Infeasible: ``runs`` is false then, with the reason and settings each of which alone would make it fit.
    """
    scenario = as_scenario(scenario)
    cluster = f"{scenario.cluster.num_gpus:,} {scenario.hardware.name}"
    try:
        answer = project(scenario)
    except Infeasible as error:
        better = _faster(scenario) if layout else None
        return Preflight(
            scenario=scenario.name, cluster=cluster, runs=False, reason=str(error), better=better,
            settings=tuple(settings_that_fit(scenario)) if error.unit == "bytes" else (),
            missing=scenario.missing_parts,
        )  # fmt: skip
    hourly_usd = answer.num_gpus * answer.price_per_gpu_hour_usd
    return Preflight(
        scenario=scenario.name, cluster=cluster, runs=True, step_s=answer.candidate.step_s,
        usd_per_step=answer.candidate.step_s.mean * hourly_usd / SECONDS_PER_HOUR, memory=answer.candidate.memory,
        better=_faster(scenario) if layout else None, missing=answer.missing,
    )  # fmt: skip


def _faster(scenario: Scenario) -> Layout | None:
    """The fastest layout of the scenario's GPUs; None where a plan has none that is more likely than not shorter."""
    drafted = scenario.speculation.draft_length if scenario.speculation.active else 0
    limits = SearchLimits((scenario.cluster.num_gpus,), (own_lag(scenario),), draft_lengths=tuple({0: 0, drafted: 0}))
    try:
        found: Plan = plan(scenario, limits=limits, rest=False)
    except (Infeasible, InputError):  # what a plan knows no layouts of, as two kinds of GPU
        return None
    best, shorter = found.best, found.best.beats_current
    if not found.changes or (shorter is not None and shorter <= 0.5):
        return None
    speedup = None if found.current is None else found.current.step.mean / best.numbers.step.mean
    return Layout(
        name=best.name, step_s=best.numbers.step, usd_per_step=best.numbers.cost_per_step_usd, speedup=speedup,
        shorter=shorter, changes=found.changes,
    )  # fmt: skip


def settings_that_fit(scenario: Scenario) -> list[str]:
    """Settings (KEY=VALUE) each of which alone makes ``scenario`` fit, of every key the one that changes it least.

    None where engine, trainer and host have room as it is: what was refused is then another part's, as a pool's.
    """
    if fits(scenario):
        return []
    found: dict[str, str] = {}
    for key, value in _settings(scenario):
        if key not in found and _alone(scenario, key, value):
            found[key] = f"{key}={value:g}" if isinstance(value, float) else f"{key}={str(value).lower()}"
    return list(found.values())


def _alone(scenario: Scenario, key: str, value: int | float | str) -> bool:
    try:
        return fits(varied(scenario, {key: value}))
    except InputError:  # a layout that does not divide the GPUs, say
        return False


def _settings(scenario: Scenario) -> Iterator[tuple[str, int | float | str]]:
    """Settings by key, nearest to the scenario's first; those that cost the least speed before the others."""
    engine, trainer, workload = scenario.released_engine, scenario.trainer, scenario.workload
    for share in sorted(SHARES, key=lambda one: abs(one - memory_share(scenario))):
        yield "engine.gpu_memory_utilization", share
    if not trainer.offload and scenario.cluster.colocated:
        yield "trainer.offload", True
    micro_batch = trainer.micro_batch_tokens or workload.max_sequence_tokens
    for key, now in (
        ("engine.max_running_sequences", engine.most_running),
        ("engine.max_batched_tokens", engine.budget_tokens),
        ("trainer.micro_batch_tokens", micro_batch),
        ("trainer.micro_batch_samples", trainer.micro_batch_samples),
        ("workload.max_sequence_tokens", workload.max_sequence_tokens),
    ):
        yield from ((key, now >> halvings) for halvings in range(1, HALVINGS + 1) if now >> halvings)
    if trainer.recompute != "full":
        yield "trainer.recompute", "full"
    for key, degree in (
        ("engine.tensor_parallel", engine.tensor_parallel),
        ("trainer.tensor_parallel", trainer.tensor_parallel),
        ("trainer.context_parallel", trainer.context_parallel),
        ("trainer.pipeline_parallel", trainer.pipeline_parallel),
    ):
        # Tensor and context parallelism beyond a node are no remedy that anybody runs.
        most = int(scenario.training_device.gpus_per_node)
        yield from ((key, degree << doublings) for doublings in range(1, 4) if degree << doublings <= most)
    if not trainer.optimizer_on_host:
        yield "trainer.optimizer_on_host", True
    if engine.kv_precision == "bf16":
        yield "engine.kv_precision", "fp8"
