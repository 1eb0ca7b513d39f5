"""Published speed-ups of techniques beside their predictions: ``python benchmarks/techniques.py [NAME...] [--json]``.

Each case (techniques.yaml) is a published run before and with a technique, as a scenario. Where the seconds of the run
before are known, the mean response is fitted to them and to nothing else; the ratio is then a prediction. Scores count
the cases that state enough: seconds before, or lengths. ``--page`` writes docs/techniques.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from rlsim.files.yaml import lists_beside
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.improve import with_effect_error
from rlsim.projection.summary import speedups, timed
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.schema.scenario import Scenario
from rlsim.simulation.pool import fleet_of
from rlsim.simulation.rollout import rollout
from rlsim.workload.draw import draw

PAGE = Path(__file__).parent.parent / "docs" / "techniques.md"
MEAN_KEY = "workload.response_tokens.mean_tokens"
LEAST_MEAN_TOKENS, MOST_OF_CAP = 100.0, 0.45
"""Bounds of a fitted mean response; the upper one is a share of the longest sequence."""
WITHIN = 0.2
"""Error up to which a ratio counts as met."""


@dataclass(frozen=True)
class Case:
    """A published ratio beside the predicted one.

    published: least and largest, equal where one was published. low, high: 90 % interval of the prediction.
    mean_tokens: fitted to the published run before (fitted) or as the scenario states it. told: it is no guess.
    """

    name: str
    technique: str
    source: str
    of: str
    published: tuple[float, float]
    predicted: float
    low: float
    high: float
    mean_tokens: float
    fitted: bool
    told: bool
    given: str

    @property
    def error(self) -> float:
        """Predicted over published, less one: 0 between the least and the largest published."""
        nearest = min(max(self.predicted, self.published[0]), self.published[1])
        return self.predicted / nearest - 1.0

    @property
    def right_sign(self) -> bool:
        """Whether what was faster is faster."""
        return all((self.predicted > 1.0) == (ratio > 1.0) for ratio in self.published)

    @property
    def inside(self) -> bool:
        """Whether the interval reaches what was published."""
        return self.low <= self.published[1] and self.high >= self.published[0]


def cases(names: Sequence[str] = ()) -> list[Case]:
    """All cases, or those of ``names``."""
    known = lists_beside(__file__, "techniques.yaml")["cases"]
    return [_case(name, {**known[known[name]["as"]], **known[name]} if "as" in known[name] else known[name])
            for name in names or known]  # fmt: skip


def _case(name: str, one: Mapping[str, Any]) -> Case:
    run = vary(load_scenario(one["base"]), one.get("run", {}), {"simulation": {"replications": 2}})
    if "baseline_s" in one:
        run = vary(run, {MEAN_KEY: _fitted_mean(run, one["before"], one["baseline_s"])})
    sides = [simulate_variant(vary(run, one[side])) for side in ("before", "after")]
    found, updates = speedups(*map(timed, sides))[one["of"] == "step"], one.get("updates", 1)
    if one["of"] == "engines":
        updates = _imbalance(sides[0]) / _imbalance(sides[1])
    ratio = with_effect_error(found.interval.over(updates))
    published = one["published"] if isinstance(one["published"], list) else [one["published"]] * 2
    return Case(
        name,
        *(str(one[key]) for key in ("technique", "source", "of")),
        published=tuple(published),
        predicted=ratio.mean,
        low=ratio.low,
        high=ratio.high,
        mean_tokens=float(run.workload.response_tokens.mean_tokens),
        fitted="baseline_s" in one,
        told=not one.get("lengths_are_a_guess", False),
        given=str(one.get("given", "")),
    )


def _imbalance(run: SimulatedVariant) -> float:
    """Time of the slowest engine over the mean of all, where a batch starts at once."""
    fleet = fleet_of(run.scenario, run.prices)
    return float(
        np.mean(
            [rollout(one.rollouts[0].batch, one.iterations[0], fleet).imbalance for one in draw(run.scenario, 0).steps]
        )
    )


def _fitted_mean(run: Scenario, before: Mapping[str, Any], baseline_s: float) -> float:
    """Mean response in tokens at which the run before takes as long as was published, to one token."""

    def excess(tokens: float) -> float:
        return math.log(timed(simulate_variant(vary(run, before, {MEAN_KEY: tokens}))).step_s / baseline_s)

    most = MOST_OF_CAP * run.workload.max_sequence_tokens
    if excess(most) < 0:
        return most
    if excess(LEAST_MEAN_TOKENS) > 0:
        return LEAST_MEAN_TOKENS
    return round(brentq(excess, LEAST_MEAN_TOKENS, most, xtol=1.0, rtol=1e-3))


def summary(found: Sequence[Case]) -> dict[str, float]:
    """Scores over the cases that state enough: median absolute error, shares within 20 %, of the right sign and inside
    their intervals."""
    told = [one for one in found if one.told]
    errors = np.abs([one.error for one in told])
    return {
        "cases": len(told),
        "median_abs_error": float(np.median(errors)) if told else math.nan,
        "within_20_percent": float(np.mean(errors <= WITHIN)) if told else math.nan,
        "right_sign": float(np.mean([one.right_sign for one in told])) if told else math.nan,
        "inside_90_percent": float(np.mean([one.inside for one in told])) if told else math.nan,
    }


def table(found: Sequence[Case]) -> list[str]:
    """A table of Markdown."""
    rows = ["| technique | ratio of | published | predicted [90 %] | error | mean response, tokens |", "|---" * 6 + "|"]
    for one in found:
        low, high = one.published
        published = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
        how = "fitted to the step before" if one.fitted else "stated" if one.told else "a guess"
        interval = f"{one.predicted:.2f} [{one.low:.2f}, {one.high:.2f}]"
        rows.append(
            f"| {one.technique}{'*' if one.given else ''} | {one.of} | {published} | {interval} | {one.error:+.0%} | "
            f"{one.mean_tokens:,.0f}, {how} |"
        )
    return rows


def page(found: Sequence[Case]) -> str:
    """docs/techniques.md: both tables and the scores."""
    scores, words = summary(found), lists_beside(__file__, "techniques.yaml")["page"]
    said = words["scores"].format(
        **{name: f"{value:.0%}" for name, value in scores.items() if name != "cases"}, cases=scores["cases"]
    )
    told, guessed = ([one for one in found if one.told is told] for told in (True, False))
    parts = [words["top"], *table(told), "", said, words["guessed"], *table(guessed)]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="cases; all without")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    given = parser.parse_args()
    found = cases(given.names)
    scores = summary(found)
    if given.json:
        rows = [{**asdict(one), "error": one.error, "inside": one.inside} for one in found]
        print(json.dumps({"cases": rows, "summary": scores}, indent=1))
        return
    if given.page:
        PAGE.write_text(page(found), encoding="utf-8")
    print("\n".join(table(found)))
    print("  ".join(f"{name} {value:.3g}" for name, value in scores.items()))


if __name__ == "__main__":
    main()
