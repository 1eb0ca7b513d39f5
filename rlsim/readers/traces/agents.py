"""What trajectories say of ``workload.agent``: the fitted process as a fragment, beside the sample and its test."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from rlsim.errors import InputError
from rlsim.readers.traces.growth import LENGTH, TURNS, Trend, trends_of
from rlsim.readers.traces.process import (
    Columns,
    Marginal,
    Test,
    marginal_of,
    scores_of,
    shared_by_prompt,
    shared_by_turns,
    tests_of,
    turns_of,
)
from rlsim.readers.traces.trajectories import Trajectory
from rlsim.readers.traces.workload import TOLD, cap_of
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.results.record import rounded
from rlsim.schema.workload import Workload
from rlsim.units import FloatArray, IntArray
from rlsim.workload.replay import COLUMNS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 20
"""Trajectories that tell a distribution at all."""
UNLIKELY = 0.05
"""A process whose draws are as far from the sample in a smaller share of cases does not describe it."""
ASSUMED_GROUP: float = Workload.model_fields["group_correlation"].default
"""Where nothing names prompts."""


@dataclass(frozen=True, eq=False)
class AgentAnswer:
    """Trajectories as a workload. shares: correlations by key of a scenario; settings: of workload; of_agent: of
    workload.agent; tests: of the process that they make."""

    found: Sequence[Trajectory]
    columns: Columns
    where: str
    marginals: Sequence[Marginal]
    settings: dict[str, Any]
    of_agent: dict[str, Any]
    tests: Sequence[Test]
    notes: Sequence[str]

    @cached_property
    def trends(self) -> list[Trend]:
        """What grows over the steps of training."""
        return trends_of(self.found)

    def picture(self) -> Figure:
        """Distribution functions of the trajectories, measured and drawn from the fitted process."""
        from rlsim.report.figures.bars import process_figure

        return process_figure(f"{self.columns.turns.size:,} trajectories and the fitted process", self.tests)

    def fragment(self, replay: str = "") -> str:
        """The part of a scenario file that the trajectories give. replay: where they stand as they are."""
        lines = [f"# {self.where}: {self.columns.turns.size:,} trajectories", "workload:"]
        lines += [f"  {key}: {_flow(value)}" for key, value in self.settings.items()]
        lines += ["  agent:", *(f"    {key}: {_flow(value)}" for key, value in self.of_agent.items())]
        grown = {one.name: one.points for one in self.trends}
        keys = {
            key: grown[name] for key, name in (("response_growth", LENGTH), ("turns_growth", TURNS)) if name in grown
        }
        if keys:
            lines += ["# Over the steps of training, of rlsim run (times of calls stay; turns_growth not with replay):"]
            lines += [f"# run: {_flow(keys)}"]
        if replay:
            lines.append("    # As they are, in place of draws of this process, then without failure_share:")
            lines.append(f"    # replay: {_flow({'kind': 'trace', 'path': replay})}")
        return "\n".join(lines) + "\n"

    def as_they_are(self) -> str:
        """CSV of the trajectories for ``workload.agent.replay``; empty where a time of an environment is not known."""
        columns, gap = self.columns, 0
        if np.isnan(columns.environment_s).any():
            return ""
        out = [",".join(COLUMNS)]
        for turn, owner in enumerate(columns.owner.tolist()):
            last = turn + 1 == columns.owner.size or columns.owner[turn + 1] != owner
            after = (0.0, 0.0) if last else (columns.observation_tokens[gap], columns.environment_s[gap])
            gap += not last
            prompt = "" if columns.group is None else columns.group[owner]
            tokens = columns.prompt_tokens[owner], columns.response_tokens[turn], after[0]
            out.append(f"{prompt},{owner},{','.join(f'{value:.0f}' for value in tokens)},{after[1]:.9g}")
        return "\n".join(out) + "\n"

    def remarks(self) -> tuple[str, ...]:
        """What a reader must know."""
        out, total = list(self.notes), len(self.found)
        failed = sum(one.failed for one in self.found)
        cut = float(self.columns.cut.mean())
        out.append(
            f"{failed / total:.1%} of the trajectories failed and are in failure_share alone; {cut:.1%} were cut"
        )
        known = [f"{one.name} to {_error(one.measured, self.columns.group):.0%}" for one in self.tests]
        out.append(f"the sample gives the mean (90 %) of {', '.join(known)}: intervals of project lack that")
        out += [f"over training, {one.text}: the process is their mean" for one in self.trends]
        far = [one.name for one in self.tests if one.p < UNLIKELY]
        if far:
            out.append(f"the fitted process does not describe {', '.join(far)}: its draws are seldom as far from it")
        dropped = sum(one.branches for one in self.found)
        if dropped:
            out.append(f"{dropped:,} calls of other branches (sub-agents, compactions) are left out")
        calls = [pair for one in self.found for pair in pairwise(one.calls)]
        kept = [now.context_tokens >= old.context_tokens + old.response_tokens for old, now in calls]
        if kept and (share := 1 - sum(kept) / len(kept)) > 0.01:
            out.append(f"{share:.0%} of the turns begin with a context that no longer holds all of the one before")
        cached = [now.cached_tokens / max(now.context_tokens, 1.0) for _, now in calls]
        if cached and not math.isnan(sum(cached)):
            out.append(f"{np.mean(cached):.0%} of a later turn's context came from the prefix cache")
        return tuple(out)

    def by_turn(self) -> list[tuple[int, int, float, float, float, float]]:
        """Of the 1st, 2nd, 4th, ... turn: trajectories, mean tokens generated, thought among them, observed, seconds.

        NaN where the files do not say."""
        out, number = [], 1
        calls = [one.calls for one in self.found if not one.failed]
        while reached := [row for row in calls if len(row) >= number]:
            now, later = [row[number - 1] for row in reached], [row for row in reached if len(row) > number]
            pairs = [(row[number - 1], row[number]) for row in later]
            observed = [b.context_tokens - a.context_tokens - a.response_tokens for a, b in pairs]
            figures = ([c.response_tokens for c in now], [c.thought_tokens for c in now], observed,
                       [b.start_s - a.end_s for a, b in pairs])  # fmt: skip
            means = [float(np.mean(part)) if part else math.nan for part in figures]
            out.append((number, len(reached), means[0], means[1], means[2], means[3]))
            number *= 2
        return out

    def by_tool(self) -> list[tuple[str, int, float, float]]:
        """Of each tool, most called first: calls, mean and 90th percentile of the seconds after them."""
        seconds: dict[str, list[float]] = {}
        for one in self.found:
            for old, now in pairwise(one.calls):
                seconds.setdefault(old.tool or "(none)", []).append(float(np.maximum(now.start_s - old.end_s, 0.0)))
        ordered = Counter({name: len(values) for name, values in seconds.items()}).most_common(8)
        return [(name, n, float(np.mean(seconds[name])), float(np.quantile(seconds[name], 0.9))) for name, n in ordered]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        tests = {one.name: {"distance": rounded(one.distance, 6), "p": rounded(one.p, 6)} for one in self.tests}
        heads = ("turn", "trajectories", "response_tokens", "thought_tokens", "observation_tokens", "environment_s")
        return {
            "schema": "rlsim.agents/1",
            "trace": self.where,
            "trajectories": int(self.columns.turns.size),
            "workload": {**self.settings, "agent": self.of_agent},
            "tests": tests,
            "turns": [dict(zip(heads, _known(row), strict=True)) for row in self.by_turn()],
            "tools": [
                dict(zip(("tool", "calls", "mean_s", "p90_s"), _known(row), strict=True)) for row in self.by_tool()
            ],
            "trends": [{"name": one.name, "points": one.points} for one in self.trends],
            "remarks": list(self.remarks()),
            "fragment": self.fragment(),
        }

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """For a terminal."""
        lines = [*style.wrapped(f"{self.where}: {self.columns.turns.size:,} trajectories"), ""]
        rows = [
            (one.name, *(_shown(v) for v in (one.mean, *one.quantile(np.array(TOLD)))), one.section["kind"])
            for one in self.marginals
        ]
        lines += [*table(("", "mean", *(f"p{100 * level:g}" for level in TOLD), "fit"), rows, style, "<>"), ""]
        turns = [(str(number), f"{count:,}", *map(_shown, rest)) for number, count, *rest in self.by_turn()]
        heads = ("turn", "trajectories", "generated", "of it thought", "observation", "environment s")
        lines += [*table(heads, turns, style, ">"), ""]
        tools = [(name, f"{count:,}", _shown(mean), _shown(high)) for name, count, mean, high in self.by_tool()]
        lines += [*table(("called", "times", "mean s", "p90 s"), tools, style, "<>"), ""]
        tests = [
            (one.name, _shown(one.measured.mean()), _shown(one.drawn.mean()), f"{one.distance:.3f}", f"{one.p:.2f}")
            for one in self.tests
        ]
        lines += [*table(("of a trajectory", "measured", "fitted", "distance", "p"), tests, style, "<>"), ""]
        for remark in self.remarks():
            lines += style.wrapped(remark, "- ")
        return "\n".join([*lines, "", self.fragment(), "Paste it into a scenario, or give it 'extends: SCENARIO'."])


def _error(values: FloatArray, group: IntArray | None) -> float:
    """Half of the 90 % interval of the mean over it; trajectories of a prompt are no independent ones."""
    if group is not None:
        number = np.unique(group, return_inverse=True)[1]
        values = np.bincount(number, values) / np.bincount(number)
    # 90 % of a normal distribution lie within 1.645 deviations of its mean.
    return 1.645 * float(values.std() / math.sqrt(values.size) / max(float(values.mean()), 1e-9))


def _known(row: Sequence[Any]) -> list[Any]:
    floats = (None if isinstance(one, float) and math.isnan(one) else one for one in row)
    return [rounded(one, 6) if isinstance(one, float) else one for one in floats]


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _flow(value: Any) -> str:
    """A value as YAML in a line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(one)}" for key, one in value.items()) + "}"
    return "[" + ", ".join(map(_flow, value)) + "]" if isinstance(value, list) else f"{value}"


def agents_of(
    found: Sequence[Trajectory], where: str, group_size: int | None = None, notes: Sequence[str] = ()
) -> AgentAnswer:
    """The process that the trajectories are draws of. notes: of their reader.

    Raises InputError where fewer than LEAST of them did not fail.
    """
    good = sum(not one.failed for one in found)
    if good < LEAST:
        raise InputError(f"{where}: {good} trajectories that did not fail; at least {LEAST} are needed")
    columns = Columns.of(found, group_size, where)
    marginals, settings, of_agent = _marginals(columns)
    remarks = [*notes, *_correlated(columns, settings, of_agent)]
    if "environment_s" not in of_agent:
        remarks.append("not every time between two turns is there: state workload.agent.environment_s")
    rewards = [one.reward_s for one in found if not math.isnan(one.reward_s)]
    if rewards:
        settings["environment_s"] = round(float(np.mean(rewards)), 4)
    if good < len(found):
        of_agent["failure_share"] = round(1 - good / len(found), 4)
    given = {**settings, "agent": of_agent, "prompts_per_step": 1, "generations_per_prompt": 1}
    try:
        fitted = Workload.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{where}: is no workload that rlsim simulates: {place}: {first['msg']}") from error
    tests = tests_of(columns, fitted)
    return AgentAnswer(found, columns, where, marginals, settings, of_agent, tests, remarks)


def _marginals(columns: Columns) -> tuple[list[Marginal], dict[str, Any], dict[str, Any]]:
    """Distributions, and as keys of workload and workload.agent."""
    counts = columns.turns
    most, by_context = columns.most_turns, columns.cut_by_context
    context = float(columns.total_tokens.max()) if by_context.any() else cap_of(columns.total_tokens)
    # A scenario needs a cap where none shows: the next power of two cuts nothing of the sample.
    longest = 2 ** math.ceil(math.log2(columns.total_tokens.max() + 1)) if context is None else int(context)
    last = np.cumsum(counts) - 1
    response_cap = cap_of(columns.response_tokens)
    censored = columns.response_tokens == (response_cap or math.inf)
    # A turn that its context cuts ends exactly there; one whose answer no longer fits is whole.
    censored[last[columns.total_tokens >= (context or math.inf)]] = True
    # The process draws lengths alike for all trajectories: one of many turns weighs no more than another.
    weights = 1 / counts[columns.owner]
    # A prompt counts once, however many trajectories it has.
    firsts = slice(None) if columns.group is None else np.unique(columns.group, return_index=True)[1]
    opening = columns.prompt_tokens[firsts]
    prompts = marginal_of("prompt tokens", "tokens", opening, np.ones(opening.size))
    limit = min(longest, response_cap or longest)
    turns = turns_of(counts, by_context, most)
    responses = marginal_of("turn tokens", "tokens", columns.response_tokens, weights, censored, limit)
    marginals = [turns, prompts, responses]
    settings: dict[str, Any] = {
        "prompt_tokens": prompts.section, "response_tokens": responses.section, "max_sequence_tokens": longest,
    }  # fmt: skip
    if response_cap is not None and response_cap < longest:
        settings["max_response_tokens"] = int(response_cap)
    of_agent: dict[str, Any] = {"turns": turns.section}
    if most is not None:
        of_agent["max_turns"] = most
    if columns.gap_owner.size:
        weights = 1 / (counts - 1)[columns.gap_owner]
        observations = marginal_of("observation tokens", "tokens", columns.observation_tokens, weights)
        marginals.append(observations)
        of_agent["observation_tokens"] = observations.section
        if not np.isnan(columns.environment_s).any():
            times = marginal_of("environment s", "s", columns.environment_s, weights)
            marginals.append(times)
            of_agent["environment_s"] = times.section
    return marginals, settings, of_agent


def _correlated(columns: Columns, settings: dict[str, Any], of_agent: dict[str, Any]) -> list[str]:
    """State what trajectories of a prompt and turns of a trajectory share; remarks."""
    size, group = columns.turns.size, columns.group
    scores = scores_of(columns.response_tokens, 1 / columns.turns[columns.owner])
    within = shared_by_turns(scores, columns.owner, size)
    lengths = np.bincount(columns.owner, scores, size) / columns.turns
    turns = scores_of(columns.turns.astype(np.float64), np.ones(size))
    slow, slow_within, timed = np.zeros(size), 0.0, "environment_s" in of_agent
    if timed:
        gaps = np.maximum(columns.turns - 1, 1)
        scores = scores_of(columns.environment_s, 1 / gaps[columns.gap_owner])
        slow_within = max(0.0, shared_by_turns(scores, columns.gap_owner, size))
        slow = np.bincount(columns.gap_owner, scores, size) / gaps
    if group is None:
        shared = min(max(within, 0.0), ASSUMED_GROUP)
        settings["group_correlation"] = round(shared, 3)
        of_agent["response_trajectory_correlation"] = _share(within - shared)
        of_agent["environment_trajectory_correlation"] = _share(slow_within)
        return ["nothing names the prompts: what trajectories of one share is assumed (--group-size N tells)"]
    shared, by_turns, by_times = (_share(shared_by_prompt(part, part, group)) for part in (lengths, turns, slow))
    settings["group_correlation"] = shared
    of_agent["response_trajectory_correlation"] = _share(min(within, 1.0) - shared)
    of_agent["turns_group_correlation"] = by_turns
    together = _joint(turns, lengths, group, (by_turns, shared))
    # A context that cuts ends prompts of long turns after few: what is negative then is of the cut, which is simulated.
    of_agent["turns_length_correlation"] = max(0.0, together) if columns.cut.any() else together
    if timed:
        of_agent["environment_group_correlation"] = by_times
        of_agent["environment_trajectory_correlation"] = _share(min(slow_within, 1.0) - by_times)
        of_agent["environment_length_correlation"] = _joint(slow, lengths, group, (by_times, shared))
    return []


def _share(value: float) -> float:
    return math.floor(1000 * min(1.0, max(0.0, value))) / 1000  # rounded down: sums of two must not exceed 1


def _joint(first: FloatArray, second: FloatArray, group: IntArray, shares: tuple[float, float]) -> float:
    """Correlation of what prompts have in common of two scores; 0 where chance alone gives as much."""
    together = shared_by_prompt(first, second, group)
    count = np.maximum(np.bincount(group), 1)
    used = np.bincount(group) > 1
    means = [(np.bincount(group, part) / count)[used] for part in (first, second)]
    error = math.sqrt(float(means[0].var() * means[1].var()) / max(1, int(used.sum())))
    if min(shares) <= 0 or abs(together) < 2 * error:
        return 0.0
    return round(min(1.0, max(-1.0, together / math.sqrt(shares[0] * shares[1]))), 3)
