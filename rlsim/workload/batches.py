"""The rollout batch of one step, drawn from a seed alone.

Lengths depend on (seed, replication, step), never on a deployment: whatever is compared meets the same work.
"""

import math
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.errors import Infeasible, InputError
from rlsim.schema.speculation import Variation
from rlsim.schema.workload import ConstantLength, Workload
from rlsim.units import BoolArray, FloatArray, IntArray
from rlsim.workload.acceptance import (
    LOGIT_GRID,
    Acceptance,
    SampleMoves,
    iterations_needed,
    moments_by_logit,
    moves_of,
)
from rlsim.workload.agents import Turns, draw_turns, mean_turns
from rlsim.workload.agents import longest_environment_s as longest_of
from rlsim.workload.file_cache import cached_with_files
from rlsim.workload.lengths import (
    UNSCALED,
    LengthDistribution,
    Place,
    Scales,
    response_caps,
    solve_distribution,
    whole_tokens,
)
from rlsim.workload.replay import replayed

_PROMPTS, _GROUPS, _SAMPLES, _ACCEPTANCE, _USABLE, _PROMPT_DIFFICULTY, _SAMPLE_DIFFICULTY, _RACING_SAMPLES = range(8)
_CAP_POINTS = 32
_MEAN_POINTS = 4096
_LENGTH_POINTS = 64


class Batch(Struct, frozen=True, eq=False):
    """Samples of one step in the order of their prompt groups; arrays of one entry per sample.

    group: number of the prompt, 0, 0, ..., 1, 1, ... prompt_tokens + response_tokens never exceeds the cap.
    """

    prompt_tokens: IntArray
    response_tokens: IntArray
    group: IntArray

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.group.size)

    @property
    def total_tokens(self) -> IntArray:
        """Prompt plus response of each sample."""
        return self.prompt_tokens + self.response_tokens


class Generated(Struct, frozen=True, eq=False):
    """One rollout of a step; trained: of each sample, whether the step trains on it, in a race as drawn whether it
    would if all generated equally fast.

    turns: of trajectories that have any. The responses of ``batch`` are then all of a trajectory beyond its prompt,
    observations included, as it is trained on.
    """

    batch: Batch
    trained: BoolArray
    turns: Turns | None = None

    @property
    def generated(self) -> Batch | Turns:
        """What holds the response_tokens that the engine generates: one entry per sample, or per turn."""
        return self.batch if self.turns is None else self.turns


SMALL_STEP_TURNS, SMALL_STEPS_KEPT = 4096, 2048
"""Turns of a step that takes less than 0.2 MB, and such steps cached per process. Every alternative to a loop 16
batches ahead meets 130 of them in each replication: to draw them anew was a third of the time of ``improve``."""


def is_small(workload: Workload) -> bool:
    """Whether a rollout has few turns, or samples where it has none."""
    samples = workload.launched_prompts * workload.launched_generations
    return samples * mean_turns(workload.agent) <= SMALL_STEP_TURNS


@cached_with_files(256, is_small, SMALL_STEPS_KEPT)
def draw_rollouts(workload: Workload, place: Place, scales: Scales = UNSCALED) -> tuple[Generated, ...]:
    """The rollouts of a step: one, or under dynamic sampling as many as give prompts_per_step usable groups.

    Each group is usable with probability usable_group_share, whatever its lengths; the first usable ones are trained
    on. The last few are cached: variants of one scenario ask for the same. Raises Infeasible where
    max_rollouts_per_step rollouts hold too few.
    """
    if workload.racing:
        batch, turns = _draw(workload, place, scales)
        counts = workload.prompts_per_step, workload.generations_per_prompt
        return (Generated(batch, first_done(batch, batch.response_tokens, *counts), turns),)
    wanted, found = workload.prompts_per_step, []
    rng = place.generator(_USABLE)
    for number in range(workload.max_rollouts_per_step):
        batch, turns = _draw(workload, place._replace(number=number), scales)
        usable = np.ones(int(batch.group[-1]) + 1, dtype=np.bool_)
        if workload.usable_group_share < 1:
            usable = rng.random(usable.size) < workload.usable_group_share
        # Those beyond the wanted ones are generated and thrown away, as dynamic sampling does with a last round.
        usable &= np.cumsum(usable) <= wanted
        wanted -= int(usable.sum())
        found.append(Generated(batch, usable[batch.group], turns))
        if wanted == 0:
            return tuple(found)
    needed = workload.prompts_per_step
    raise Infeasible(
        f"step {place.step} found too few usable prompt groups in {len(found)} rollouts; allow more of them "
        "(workload.max_rollouts_per_step) or generate more in each (workload.generated_batch_factor)",
        needed, needed - wanted, "prompt groups",
    )  # fmt: skip


def first_done(batch: Batch, finish: IntArray | FloatArray, prompts: int, size: int) -> BoolArray:
    """The first ``size`` samples, by ``finish``, of those ``prompts`` groups that have so many first; ties in order.

    batch: groups of equal sizes.
    """
    by_group = finish.reshape(int(batch.group[-1]) + 1, -1)
    # The order of the order is each sample's rank in its group.
    rank = np.argsort(np.argsort(by_group, axis=1, kind="stable"), axis=1, kind="stable")
    # A group counts when so many of its samples are done; the race ends with the last of the first such groups.
    complete = np.sort(by_group, axis=1)[:, size - 1]
    chosen = np.argsort(complete, kind="stable")[:prompts]
    return np.asarray((rank < size).ravel() & np.isin(batch.group, chosen))


def draw_batch(workload: Workload, place: Place, scales: Scales = UNSCALED) -> Batch:
    """A rollout of a step: ceil(prompts_per_step x generated_batch_factor) groups, or those of a short round.

    Log lengths (normal scores for other distributions) are sqrt(rho) u_prompt + sqrt(1 - rho) e_sample with
    rho = group_correlation. Prompts stay below max_sequence_tokens; responses are cut where prompt and response reach
    it, or max_response_tokens alone. Raises InputError where a mean length reaches its cap or a length file cannot be
    used.
    """
    return _draw(workload, place, scales)[0]


def _draw(workload: Workload, place: Place, scales: Scales) -> tuple[Batch, Turns | None]:
    """:func:`draw_batch`, and the turns of its trajectories where they have any."""
    if workload.agent is not None and workload.agent.replay is not None:
        given, total, all_turns = replayed(workload, place, scales.response)
        return Batch(given, total, _numbered(workload.launched_prompts, workload.launched_generations)), all_turns
    prompts, responses = _distributions(workload)
    # Scaled before the cap: lengths that grow over a run are cut more often, as a longer wish would be.
    if scales.response != 1.0:
        responses = responses.scaled(scales.response)
    groups, size = workload.launched_prompts, workload.launched_generations
    prompt = whole_tokens(prompts.at(place.normals(groups, _PROMPTS)), workload.max_sequence_tokens - 1)
    shared, own = place.normals(groups, _GROUPS), _own_scores(workload, place)
    rho = workload.group_correlation
    # Variances add up to 1, so that the correlation changes who is long together and not how long samples are.
    scores = np.repeat(math.sqrt(rho) * shared, size) + math.sqrt(1 - rho) * own
    prompt, group = np.repeat(prompt, size), _numbered(groups, size)
    if workload.agent is not None:
        drawn = np.repeat(shared, size), own
        turns, trained = draw_turns(workload, place, (prompt, group), drawn, responses, scales.turns)
        return Batch(prompt, trained, group), turns
    return Batch(prompt, whole_tokens(responses.at(scores), response_caps(workload, prompt)), group), None


def longest_environment_s(workload: Workload, place: Place) -> float:
    """Most seconds that a trajectory of a rollout spends with environments, of its full contexts and failures nothing
    (:func:`~rlsim.workload.agents.longest_environment_s`)."""
    groups, size = workload.launched_prompts, workload.launched_generations
    if workload.agent is not None and workload.agent.replay is not None:
        turns = replayed(workload, place)[2]
        return float(np.add.reduceat(turns.environment_s, turns.first[:-1]).max())
    shared = np.repeat(place.normals(groups, _GROUPS), size)
    return longest_of(workload, place, _numbered(groups, size), shared)


@lru_cache(maxsize=8)
def _numbered(groups: int, size: int) -> IntArray:
    """Number of the group of each sample, one array for all steps: of a million samples 8 MB."""
    found = np.repeat(np.arange(groups), size)
    found.setflags(write=False)
    return found


def at_cap(workload: Workload, batch: Batch) -> BoolArray:
    """Which samples end where a cap cuts them; of trajectories those that end where their context does."""
    full = batch.total_tokens >= workload.max_sequence_tokens
    if workload.max_response_tokens is None or workload.agent is not None:
        return np.asarray(full)
    return np.asarray(full | (batch.response_tokens >= workload.max_response_tokens))


def _own_scores(workload: Workload, place: Place) -> FloatArray:
    """A normal score of each sample's own; further samples of a prompt leave the first ones as they are."""
    groups, size = workload.launched_prompts, workload.generations_per_prompt
    scores = place.normals(groups * size, _SAMPLES)
    if not (more := workload.launched_generations - size):
        return scores
    further = place.normals(groups * more, _RACING_SAMPLES)
    return np.hstack([scores.reshape(groups, size), further.reshape(groups, more)]).ravel()


def draw_iterations(
    batch: Batch | Turns, acceptance: Acceptance, place: Place, moves: SampleMoves | None = None
) -> IntArray:
    """Decode iterations of each sample of ``batch``, or of each turn.

    The prefill emits the first token; the rest takes one iteration a token, or as many verifications as it needs.
    moves: of samples, or turns, whose acceptance differs.
    """
    # A stream of its own: another acceptance leaves lengths as they are, and two methods meet the same responses.
    return iterations_needed(batch.response_tokens - 1, acceptance, place.generator(_ACCEPTANCE), moves)


def draw_moves(
    workload: Workload, variation: Variation, acceptance: Acceptance, rollout: Generated, place: Place
) -> SampleMoves:
    """Where the acceptance of each sample of ``rollout`` lies, or of each turn: turns of a trajectory agree.

    Scores have streams of their own, so that neither lengths nor the draws of verifications depend on a spread.
    """
    groups = int(rollout.batch.group[-1]) + 1
    prompt = place.normals(groups, _PROMPT_DIFFICULTY)[rollout.batch.group]
    own = place.normals(rollout.batch.samples, _SAMPLE_DIFFICULTY)
    if rollout.turns is not None:
        turns = np.diff(rollout.turns.first)
        # One prompt and one policy speak in all turns of a trajectory.
        prompt, own = np.repeat(prompt, turns), np.repeat(own, turns)
    moves = moves_of(variation, acceptance, prompt, own, likely_lengths(workload))
    if not variation.group_gain:
        return moves
    if rollout.turns is not None:
        raise InputError("speculation.variation.group_gain needs single responses: give no workload.agent beside it")
    done = np.arange(workload.launched_generations)
    # Saturating: the first finished siblings of a prompt tell a drafter more than the next ones do.
    lengths = acceptance.mean + variation.group_gain * done / (done + variation.group_half_samples)
    means, _, _ = moments_by_logit(acceptance)
    return replace(moves, group=rollout.batch.group, by_done=np.interp(lengths, means, LOGIT_GRID))


@cached_with_files(64)
def _distributions(workload: Workload) -> tuple[LengthDistribution, LengthDistribution]:
    """Prompt and response distributions; of a length file those that it holds now."""
    cap = np.array([workload.max_sequence_tokens - 1.0])
    prompts = solve_distribution(workload.prompt_tokens, cap, "prompt")
    return prompts, solve_distribution(workload.response_tokens, _likely_caps(workload, prompts), "response")


def _likely_caps(workload: Workload, prompts: LengthDistribution) -> FloatArray:
    """Caps of responses, which depend on prompts: a few equally likely ones stand for all of them in the mean."""
    if isinstance(workload.prompt_tokens, ConstantLength):
        prompt = np.array([workload.prompt_tokens.tokens])
    else:
        prompt = whole_tokens(prompts.at(_normal_quantiles(_CAP_POINTS)), workload.max_sequence_tokens - 1)
    return response_caps(workload, prompt).astype(np.float64)


def mean_drawn_tokens(workload: Workload, place: Place) -> float:
    """Mean tokens of the responses of a step's first rollout, before anything of it is left out; no agents."""
    return float(draw_rollouts(workload, place)[0].batch.response_tokens.mean())


@cached_with_files(64)
def expected_drawn_tokens(workload: Workload) -> float:
    """Mean of :func:`mean_drawn_tokens` over all steps."""
    prompts, responses = _distributions(workload)
    return float(np.mean([responses.mean_below(cap) for cap in _likely_caps(workload, prompts)]))


@cached_with_files(64)
def expected_prompt_tokens(workload: Workload) -> float:
    """Mean of the prompt lengths that :func:`draw_batch` draws, in tokens, whatever kind of length they have."""
    prompts, _ = _distributions(workload)
    drawn = whole_tokens(prompts.at(_normal_quantiles(_MEAN_POINTS)), workload.max_sequence_tokens - 1)
    return float(drawn.mean())


@cached_with_files(64)
def expected_response_tokens(workload: Workload) -> float:
    """Mean of the response lengths, or of a turn's, beside a prompt of mean length, in tokens."""
    return float(likely_lengths(workload).mean())


@cached_with_files(64)
def likely_lengths(workload: Workload) -> FloatArray:
    """Lengths of equally likely responses, cut where a prompt of mean length leaves no more room."""
    _, responses = _distributions(workload)
    room = max(1, round(workload.max_sequence_tokens - expected_prompt_tokens(workload)))
    cap = min(room, workload.longest_response_tokens)
    return whole_tokens(responses.at(_normal_quantiles(_LENGTH_POINTS)), cap).astype(np.float64)


@cache
def _normal_quantiles(points: int) -> FloatArray:
    """Normal scores of ``points`` equally likely classes."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((i + 0.5) / points) for i in range(points)])
