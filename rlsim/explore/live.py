"""A prepared scenario: each move is answered at once from what it leaves as it was, and exactly right after; and its
sliders in a notebook."""

import shlex
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, RlsimError, shortened
from rlsim.loading.differences import changes as differing
from rlsim.loading.scenario import as_scenario, load_scenario, vary
from rlsim.projection.project import project
from rlsim.projection.summary import mean_value
from rlsim.projection.variant import simulate_variant, so_many
from rlsim.report.format import seconds as duration
from rlsim.report.text.findings import ASYNC_PHASES, SYNC_PHASES, headline, step_phases
from rlsim.results import Projection, Variant
from rlsim.results.record import Record
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import ACCEPTANCE_AT
from rlsim.schema.workload import LognormalLength

QUICK_REPLICATIONS = {"sync": 2, "async": 1}
"""Drawn batches behind the first answer to a move; the exact one has the scenario's own number."""
MOST_ANSWERS = 64
"""Exact answers that are cached."""
MOST_DRAFTED, MOST_LAG = 8, 4
SIZES = 3
"""Doublings and halvings of the cluster that the slider reaches."""
SHARES = 16
"""The split moves in this part of the cluster."""
LONG_TOKENS = 100
"""From this mean on a slider of lengths stands at whole tokens."""
MEAN_TOKENS = "workload.response_tokens.mean_tokens"
ACCEPTANCE = "speculation.acceptance_length"
STATED_AT = f"speculation.{ACCEPTANCE_AT}"
DRAFTING = ("k", ACCEPTANCE, STATED_AT)
"""Keys that leave the baseline as it is."""


@dataclass(frozen=True)
class Slider:
    """A key that can be moved: its label, values and the place of the present one."""

    key: str
    label: str
    values: tuple[float, ...]
    start: int


class Side(Record):
    """A variant of an answer: seconds of a step [mean, low, high] and of its phases."""

    step_s: tuple[float, float, float]
    phases: dict[str, float]


class Moved(Record):
    """Answer to a move. exact: that of ``rlsim project``; else the candidate alone was simulated, on fewer drawn
    batches, with the interval's width of the last exact answer. baseline: None until it is known for this move, and
    where the scenario drafts nothing."""

    exact: bool
    verdict: str
    command: str
    candidate: Side
    baseline: Side | None


class OffSliderError(InputError):
    """A move to where no slider goes."""


class Live:
    """A scenario and its sliders; :meth:`move` answers at once, :meth:`settle` exactly.

    name: what commands call the scenario (a bundled name or a path); words: overrides under which it was loaded.
    Raises InputError and Infeasible as :func:`rlsim.project` does.
    """

    def __init__(self, scenario: Scenario, name: str = "", words: Sequence[str] = ()) -> None:
        self.scenario, self.name = scenario, name or scenario.name
        # Commands begin at the file: a word and a slider of the same key would contradict each other in one line.
        self._of_file, self._words = _without_words(name, words), words
        self._exact: OrderedDict[tuple[tuple[str, float], ...], Projection] = OrderedDict()
        # Priced before the sliders are made: a scenario that cannot run fails here, with its own message.
        self._last = self._project({})
        self.sliders = sliders_of(scenario)

    def changes(self, given: Mapping[str, float]) -> dict[str, Any]:
        """Overrides of a move: the sliders that stand elsewhere than in the scenario. Raises OffSliderError for
        keys that have no slider and values that it does not reach."""
        known = {slider.key: slider for slider in self.sliders}
        out: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                raise OffSliderError(f"'{shortened(key)}' has no slider; there are {', '.join(known)}")
            slider = known[key]
            if not slider.values[0] <= value <= slider.values[-1]:
                raise OffSliderError(f"{key}: must lie between {slider.values[0]:g} and {slider.values[-1]:g}")
            integral = float(value).is_integer()
            if not integral and all(one.is_integer() for one in slider.values) and key != MEAN_TOKENS:
                raise OffSliderError(f"{key}: must be a whole number")
            if value != slider.values[slider.start]:
                # Lengths and acceptance are real numbers that may happen to be whole.
                out[key] = int(value) if integral and key not in (MEAN_TOKENS, ACCEPTANCE) else value
        if out.get("k") == 0:
            out.pop(ACCEPTANCE, None)  # of no drafts
        elif "k" in out and ACCEPTANCE in out:
            out[STATED_AT] = stated_at(self.scenario)
        return out

    def move(self, given: Mapping[str, float]) -> Moved:
        """The answer at once: the exact one where it is known, else the candidate on few drawn batches."""
        changes = self.changes(given)
        known = self._exact.get(_key(changes))
        if known is not None:
            return self._exact_answer(changes, known)
        # In two steps: what is refused names the keys of the move alone.
        moved = vary(self.scenario, dict(changes))
        few = min(self.scenario.replications, QUICK_REPLICATIONS[self.scenario.loop.mode])
        run = simulate_variant(vary(moved, so_many(moved, few)))
        last = self._last.candidate.step_s
        mean = mean_value(run, lambda step: step.seconds)
        names = ASYNC_PHASES if moved.loop.mode == "async" else SYNC_PHASES
        phases = {name: run.phases_s[name] for name in names if run.phases_s[name] > 0}
        # Few batches have no interval of their own; the relative width hardly changes from one move to the next.
        candidate = Side(step_s=(mean, mean * (last.low / last.mean), mean * (last.high / last.mean)), phases=phases)
        before = self._baseline(changes) if self.scenario.speculation.active else None
        verdict = f"about {duration(mean)} a step"
        # Without drafts both sides are one scenario, which fewer batches set apart.
        if before is not None and moved.speculation.active:
            verdict += f", {before.step_s[0] / mean:.2f}x of {duration(before.step_s[0])} without drafts"
        return Moved(exact=False, verdict=verdict, command=self.command(changes), candidate=candidate, baseline=before)

    def settle(self, given: Mapping[str, float]) -> Moved:
        """The exact answer, as ``rlsim project`` gives it."""
        changes = self.changes(given)
        return self._exact_answer(changes, self._project(changes))

    def command(self, changes: Mapping[str, Any]) -> str:
        """The command line that gives the same answer."""
        words: Sequence[str] = [*self._words, *(f"{key}={value}" for key, value in changes.items())]
        if self._of_file is not None:
            words = differing(self._of_file, vary(self.scenario, dict(changes)))
        return shlex.join(["rlsim", "project", self.name, *words])

    def _project(self, changes: Mapping[str, Any]) -> Projection:
        key = _key(changes)
        if key not in self._exact:
            self._exact[key] = project(vary(self.scenario, dict(changes)))
            while len(self._exact) > MOST_ANSWERS:
                # The least recently used: hits move to the end below.
                self._exact.popitem(last=False)
        self._exact.move_to_end(key)
        self._last = self._exact[key]
        return self._last

    def _baseline(self, changes: Mapping[str, Any]) -> Side | None:
        """The exact baseline of a move, where another move that differs in drafting alone has it."""
        wanted = _key({key: value for key, value in changes.items() if key not in DRAFTING})
        # Latest first: it is the likeliest to differ in one slider only.
        for key, found in reversed(self._exact.items()):
            if tuple(one for one in key if one[0] not in DRAFTING) == wanted:
                return self._side(found, found.baseline)
        return None

    def _exact_answer(self, changes: Mapping[str, Any], found: Projection) -> Moved:
        return Moved(
            exact=True,
            verdict=headline(found),
            command=self.command(changes),
            candidate=self._side(found, found.candidate),
            baseline=self._side(found, found.baseline) if self.scenario.speculation.active else None,
        )

    @staticmethod
    def _side(found: Projection, arm: Variant) -> Side:
        phases = {name: seconds for name, seconds in step_phases(arm, found.asynchronous).items() if seconds > 0}
        return Side(step_s=(arm.step_s.mean, arm.step_s.low, arm.step_s.high), phases=phases)


def _without_words(name: str, words: Sequence[str]) -> Scenario | None:
    """The scenario that ``name`` is without its words; None without words, and where it is none without them."""
    try:
        return load_scenario(name) if words else None
    except InputError:
        return None


def _key(changes: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((key, float(value)) for key, value in changes.items()))


def sliders_of(scenario: Scenario) -> tuple[Slider, ...]:
    """Sliders of a scenario: drafts where it has a drafter, the split where it is split, lengths where they
    have a mean. Sizes and splits that its layout refuses are left out."""
    cluster, out = scenario.cluster, []
    if scenario.speculation.active:
        k = scenario.speculation.draft_length
        out.append(Slider("k", "draft length k", tuple(map(float, range(max(MOST_DRAFTED, k) + 1))), k))
        stated = scenario.speculation.acceptance_length
        if isinstance(stated, int | float):
            at = stated_at(scenario)
            out.append(_around(ACCEPTANCE, f"acceptance length at k={at}", float(stated), 1.0, at + 1.0))
    least = max(1, cluster.num_gpus >> SIZES)
    sizes = [float(n) for n in (cluster.num_gpus * 2**step // 2**SIZES for step in range(2 * SIZES + 1)) if n >= least]
    out.append(_possible(scenario, Slider("cluster.num_gpus", "GPUs", tuple(sizes), sizes.index(cluster.num_gpus))))
    if not cluster.colocated:
        share = cluster.generation / cluster.policy_gpus
        # The scenario's share is added unrounded, so that the slider can stand exactly there.
        values = sorted({round(i / SHARES, 4) for i in range(1, SHARES)} | {share})
        split = Slider("generation_share", "share that generates", tuple(values), values.index(share))
        out.append(_possible(scenario, split))
        lags = tuple(map(float, range(1, max(MOST_LAG, scenario.loop.lag) + 1)))
        if scenario.loop.lag >= 1:
            out.append(Slider("lag", "policy lag", lags, scenario.loop.lag - 1))
    lengths = scenario.workload.response_tokens
    if isinstance(lengths, LognormalLength):
        most = 0.9 * scenario.workload.longest_response_tokens
        mean = lengths.mean_tokens
        label = "mean response, tokens" if scenario.workload.agent is None else "mean response of a turn, tokens"
        digits = 0 if mean >= LONG_TOKENS else 2
        out.append(_around(MEAN_TOKENS, label, mean, mean / 4, max(mean, min(4 * mean, most)), digits))
    return tuple(one for one in out if len(one.values) > 1)


def stated_at(scenario: Scenario) -> int:
    """The draft length that the acceptance of ``scenario`` was stated at."""
    return scenario.speculation.acceptance_at_draft_length or scenario.speculation.draft_length


def _around(key: str, label: str, now: float, least: float, most: float, digits: int = 2, steps: int = 20) -> Slider:
    """A slider of even steps, rounded to ``digits``, that holds the present value in place of what is nearest to it."""
    near = (most - least) / steps / 2
    even = [round(least + (most - least) * i / steps, digits) for i in range(steps + 1)]
    values = sorted({even[0], even[-1], now, *(value for value in even if abs(value - now) > near)})
    return Slider(key, label, tuple(values), values.index(now))


def _possible(scenario: Scenario, slider: Slider) -> Slider:
    """The slider without values that no layout of the scenario divides; what lacks memory is found when it is set."""
    now = slider.values[slider.start]

    def runs(value: float) -> bool:
        try:
            vary(scenario, {slider.key: int(value) if value.is_integer() else value})
        except InputError:
            return False
        return True

    values = tuple(value for value in slider.values if value == now or runs(value))
    return Slider(slider.key, slider.label, values, values.index(now))


def live(scenario: Scenario | Path | str) -> Any:
    """Sliders over a scenario, or over the file or bundled name of one, and the answer that follows them, as a widget.

    Needs ipywidgets (``pip install rlsim[live]``); raises InputError where it is missing.
    """
    try:
        from ipywidgets import HTML, SelectionSlider, VBox
    except ImportError:
        raise InputError("rlsim.live needs ipywidgets: pip install ipywidgets") from None
    name = scenario if isinstance(scenario, str) else ""
    warm = Live(as_scenario(scenario), name)
    answer = HTML(shown(warm.settle({})))
    controls = {
        slider.key: SelectionSlider(
            options=[(f"{value:g}", value) for value in slider.values],
            index=slider.start,
            description=slider.label,
            style={"description_width": "11em"},
            layout={"width": "32em"},
        )
        for slider in warm.sliders
    }

    def follow(change: object) -> None:
        given = {key: control.value for key, control in controls.items()}
        try:
            # At once a rough answer, then the exact one in its place.
            answer.value = shown(warm.move(given))
            answer.value = shown(warm.settle(given))
        except RlsimError as error:
            answer.value = f"<p>{escape(str(error))}</p>"

    for control in controls.values():
        control.observe(follow, names="value")
    return VBox([*controls.values(), answer])


def shown(moved: Moved) -> str:
    """An answer as HTML: verdict, phases, command."""
    phases = ", ".join(f"{escape(name)} {seconds:.3g}" for name, seconds in moved.candidate.phases.items())
    strong = "b" if moved.exact else "span"
    return f"<p><{strong}>{escape(moved.verdict)}</{strong}></p><p>{phases}</p><code>{escape(moved.command)}</code>"
