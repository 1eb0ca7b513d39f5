"""Draft lengths that follow the live batch, as an iteration table for a simulation that knows one draft length.

The simulation counts a sequence's progress in reference iterations: verifications of draft_length tokens, each of which
gives it a(draft_length) tokens in the mean. Where n sequences are live the engine drafts k(n) tokens and takes
t_k(n)(n, c) for a(k(n)) tokens; a reference iteration is then a(draft_length) / a(k(n)) of these and takes

    t_k(n)(n, c) a(draft_length) / a(k(n)).

Exact in the mean of tokens. Neglected: counts keep the spread of the reference; samples that accept less than others
draw more iterations where nothing is drafted, too; a prefill chunk joins a reference iteration instead of each of the
engine's; what the drafter's cache misses while it rests is caught up at no cost.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.device_times import DRAFT_PARTS
from rlsim.costs.engine.iteration import IterationCosts, PolicyChoice
from rlsim.costs.engine.layers import Components
from rlsim.costs.interface import EngineCounters
from rlsim.costs.operators.time import OperatorTime, zero
from rlsim.schema.speculation import Policy
from rlsim.units import FloatArray, IntArray, distinct

SGLANG_CANDIDATES = {1: ((1, 3, 5, 7), -0.25), 8: ((0, 1, 3), 0.0), 32: ((0, 1), 0.0), 64: ((0,), 0.0)}
"""Draft lengths that SGLang chooses from, by the live sequences from which they count, and what lowers the threshold of
a shorter one (srt/speculative/adaptive_spec_params.py and adaptive_step_router.py @015c8726)."""


class DraftPolicy(Struct, frozen=True):
    """Which draft length an iteration has, and what it goes by.

    requests: kinds of live requests as (share of verifications, P_1..P_k); shares add up to 1. lengths: tokens of a
    verification of 0..k drafted tokens, mean over verifications. context_tokens: at which iterations are compared.
    """

    kind: Policy
    off_above_sequences: int
    context_tokens: float
    lengths: tuple[float, ...]
    requests: tuple[tuple[float, tuple[float, ...]], ...]
    schedule: tuple[tuple[int, int, int], ...] = ()


class _Options(NamedTuple):
    """Ways to draft, one entry each: mean drafted tokens of a request, most of any, and tokens of an iteration."""

    drafted: FloatArray
    most: IntArray
    tokens: FloatArray


def policy_costs(by_length: Sequence[IterationCosts], policy: DraftPolicy) -> IterationCosts:
    """Costs of reference iterations under a policy. by_length: of engines that draft 0, 1, ... draft_length tokens."""
    options = _options(policy)
    ways = zip(options.drafted.tolist(), options.most.tolist(), strict=True)
    seconds = np.stack([_option_s(by_length, policy.context_tokens, drafted, most) for drafted, most in ways])
    choice = _choice(policy, options, seconds)
    reference = by_length[-1]
    components, attention = [one.components for one in by_length], [one.attention for one in by_length]
    eager = np.stack([one.eager for one in by_length])
    rows = np.arange(eager.shape[1])
    table = replace(
        reference.table,
        step_s=_table_s(choice, [one.table.step_s for one in by_length], components),
        attention_s=_table_s(choice, [one.table.attention_s for one in by_length], attention),
    )
    # Where lengths are mixed, one that exceeds the graphs takes the whole batch out of them.
    beyond = eager[choice.low, rows] | (eager[choice.high, rows] & (choice.share > 0))
    mixed, attended = _mixed(components, choice), _mixed(attention, choice)
    return replace(reference, table=table, components=mixed, attention=attended, eager=beyond, choice=choice)


def counted(costs: IterationCosts, counters: EngineCounters) -> EngineCounters:
    """What the engine did, from counters of reference iterations; the same ones where a draft length is fixed."""
    if costs.choice is None:
        return counters
    out = counters.copy()
    for n, count in enumerate(counters.iterations_at):
        if count:
            out.iterations_at[n] = round(count * float(costs.choice.repeats[n]))
            # By the rounded count, so that the mean context stays what it was.
            out.context_at[n] *= out.iterations_at[n] / count
    return out


def tokens_factor(costs: IterationCosts, counters: EngineCounters) -> float:
    """Tokens that an iteration gives a sequence over those of a reference iteration, mean over what was counted."""
    if costs.choice is None:
        return 1.0
    sequences = np.arange(len(counters.iterations_at)) * np.asarray(counters.iterations_at, dtype=np.float64)
    run = float(sequences @ costs.choice.repeats[: len(sequences)])
    return float(sequences.sum()) / run if run > 0 else 1.0


def _options(policy: DraftPolicy) -> _Options:
    """Every draft length for all requests alike; per_request also a length for each kind of request.

    A position is worth its verification where it survives often enough; so the lengths that can be best are those of a
    least survival rate common to all requests (DSpark's scheduler compares the same).
    """
    uniform = np.arange(len(policy.lengths))
    options = _Options(uniform.astype(np.float64), uniform, np.asarray(policy.lengths))
    if policy.kind == "budget":
        # A block is drafted whole, whatever of it is verified.
        options = options._replace(most=np.full_like(uniform, uniform[-1]))
    if policy.kind not in ("per_request", "budget") or len(policy.requests) < 2:
        return options
    shares = np.array([share for share, _ in policy.requests])
    rates = np.array([rate for _, rate in policy.requests])
    least = distinct(rates)
    lengths = (rates[None, :, :] >= least[:, None, None]).sum(axis=2)
    tokens = 1.0 + np.concatenate((np.zeros((len(rates), 1)), np.cumsum(rates, axis=1)), axis=1)
    emitted = np.take_along_axis(tokens[None, :, :], lengths[:, :, None], axis=2)[:, :, 0] @ shares
    # Draft passes run for the longest of a batch, whose others are idle in them; verified is what each of them drafted.
    most = lengths.max(axis=1) if policy.kind == "per_request" else np.full(len(lengths), uniform[-1])
    every = zip(options, (lengths @ shares, most, emitted), strict=True)
    return _Options(*(np.concatenate(both) for both in every))


def _option_s(by_length: Sequence[IterationCosts], context_tokens: float, drafted: float, most: int) -> FloatArray:
    """Seconds of iterations by live sequences: verification of the mean length, draft passes of the longest."""
    low = int(drafted)
    high, share = min(low + 1, len(by_length) - 1), drafted - low
    verified = (1 - share) * _part_s(by_length[low], context_tokens, False)
    if share > 0:
        verified = verified + share * _part_s(by_length[high], context_tokens, False)
    return np.asarray(verified + _part_s(by_length[most], context_tokens, True))


def _part_s(costs: IterationCosts, context_tokens: float, drafting: bool) -> FloatArray:
    """Seconds by live sequences at a mean context, of draft passes or of all the rest."""
    column = context_tokens / costs.table.context_step_tokens
    below = int(np.clip(int(column), 0, costs.table.attention_s.shape[1] - 2))
    weight = column - below
    out = np.zeros(len(costs.table.step_s))
    for name, timed in costs.components.items():
        out += timed.seconds * ((name in DRAFT_PARTS) == drafting)
    for name, timed in costs.attention.items():
        at = timed.seconds[:, below] * (1 - weight) + timed.seconds[:, below + 1] * weight
        out += at * ((name in DRAFT_PARTS) == drafting)
    return out


def _choice(policy: DraftPolicy, options: _Options, seconds: FloatArray) -> PolicyChoice:
    """What is drafted at each number of live sequences. seconds: of shape (options, sequences)."""
    longest = len(policy.lengths) - 1
    if policy.kind == "off_above":
        best = np.where(np.arange(seconds.shape[1]) > policy.off_above_sequences, 0, longest)
    elif policy.kind in ("by_schedule", "adaptive"):
        stated = (
            _adaptive(policy.lengths)
            if policy.kind == "adaptive"
            else [(first, min(length, longest)) for first, _, length in policy.schedule]
        )
        starts, lengths = np.array(stated).T
        # A gap keeps the length before it, and so does everything beyond the last (build_dynamic_sd_schedule_lookup,
        # vllm/v1/spec_decode/dynamic/utils.py @14b450ca).
        best = lengths[np.maximum(np.searchsorted(starts, np.arange(seconds.shape[1]), side="right") - 1, 0)]
    else:
        # Seconds a token: iterations of different lengths give sequences differently much.
        best = np.argmin(seconds / options.tokens[:, None], axis=0)
    drafted = options.drafted[best]
    low = np.minimum(drafted.astype(np.int64), longest)
    repeats = policy.lengths[longest] / options.tokens[best]
    return PolicyChoice(low, np.minimum(low + 1, longest), drafted - low, options.most[best], repeats)


def _adaptive(lengths: tuple[float, ...]) -> list[tuple[int, int]]:
    """What SGLang's rule settles on: (live sequences from which, draft length).

    A mean of accepted drafts within half a token of all drafted ones asks for the next longer candidate, one that a
    shorter candidate would give too for that. Of two lengths that take turns the shorter one; probes in between and the
    noise of the mean are neglected.
    """
    return [(batch, _settled(steps, lower, lengths)) for batch, (steps, lower) in SGLANG_CANDIDATES.items()]


def _settled(steps: tuple[int, ...], lower: float, lengths: tuple[float, ...]) -> int:
    longest = len(lengths) - 1
    known = [step for step in steps if step <= longest] or [0]
    path = [known.index(longest) if longest in known else len(known) // 2]
    while True:
        at = path[-1]
        step, accepted = known[at], lengths[known[at]] - 1.0
        if at and accepted <= max(known[at - 1], 1) - 0.5 + lower:
            at -= 1
        elif at + 1 < len(known) and (step == 0 or accepted > step - 0.5):
            at += 1
        if at in path:
            return known[min(path[path.index(at) :])]
        path.append(at)


def _mixed(by_length: Sequence[Components], choice: PolicyChoice) -> Components:
    """Parts of a reference iteration: of the chosen lengths, as often as it is run."""
    out: Components = {}
    for name in dict.fromkeys(name for components in reversed(by_length) for name in components):
        each = _every(by_length, name)
        seconds, known = (
            _chosen(values, choice, name in DRAFT_PARTS)
            for values in ([one.seconds for one in each], [one.seconds * one.measured for one in each])
        )
        # 1e-300: parts without any time have a share of 0 and not 0 / 0.
        out[name] = OperatorTime(seconds, known / np.maximum(seconds, 1e-300), each[-1].bound)
    return out


def _every(by_length: Sequence[Mapping[str, OperatorTime]], name: str) -> list[OperatorTime]:
    """A part under every draft length, no time where it does not exist."""
    like = next(one[name] for one in reversed(by_length) if name in one)
    return [one.get(name) or zero(like.seconds) for one in by_length]


def _table_s(choice: PolicyChoice, seconds: Sequence[FloatArray], parts: Sequence[Components]) -> FloatArray:
    """Seconds of a table."""
    # Passes run for the longest draft of the batch, the verification holds the mean one: the difference is added.
    out = _chosen(seconds, choice, drafting=False)
    for name in DRAFT_PARTS:
        if name in parts[-1]:
            passes = [one.seconds for one in _every(parts, name)]
            out[1:] += (_chosen(passes, choice, drafting=True) - _chosen(passes, choice, drafting=False))[1:]
    return out


def _chosen(by_length: Sequence[FloatArray], choice: PolicyChoice, drafting: bool) -> FloatArray:
    """What the chosen lengths take in a reference iteration: draft passes the longest, a verification the mean one."""
    every, rows = np.stack(by_length), np.arange(len(choice.low))
    wide = (slice(None),) + (None,) * (every.ndim - 2)
    share, repeats = choice.share[wide], choice.repeats[wide]
    if drafting:
        return np.asarray(every[choice.most, rows] * repeats)
    return np.asarray(((1 - share) * every[choice.low, rows] + share * every[choice.high, rows]) * repeats)
