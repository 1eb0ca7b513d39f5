"""A sweep in a terminal, and what sweeps and plans say of money and of captured graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import Cell, Table, cell
from rlsim.results.record import Row
from rlsim.results.sweep import ACCEPTANCE_KEY, DRAFT_KEYS, SweepResult, break_even_lengths, interval_in
from rlsim.units import SECONDS_PER_HOUR

SHOWN = 10
NOTABLE_EAGER_SHARE = 0.02
"""Share of eager iterations from which an answer warns of them."""


def render_sweep(result: SweepResult, style: Style = DEFAULT_STYLE) -> str:
    """Counts, the fastest cells, break-even acceptance lengths, and why cells cannot run."""
    done = sorted(result.done, key=lambda row: row["step_s"] / (result.samples(row) if result.batch_varies else 1))
    counts = f"{len(result.rows)} cells, {len(done)} can run, {result.replications} replications each"
    if result.replications < result.own_replications:
        counts += f" (project takes {result.own_replications}: --replications {result.own_replications} says the same)"
    shown = done[:SHOWN]
    prices = {row["cost_per_step_usd"] / row["step_s"] / row["num_gpus"] * SECONDS_PER_HOUR for row in shown}
    named = [(" ".join(f"{name.rpartition('.')[2]}={row[name]}" for name in result.columns), row) for row in done]
    return sections(
        style.wrapped(f"{result.scenario}: {counts}"),
        [*_fastest(result, shown).lines(style), *style.wrapped(price_remark(prices), "  ")],
        *(style.wrapped(f"With {text}.") for text in result.caveats),
        *map(style.wrapped, eager_remark(named)),
        _break_even(result, style),
        _reasons(result, style),
    )


def _fastest(result: SweepResult, shown: Sequence[Row]) -> Table:
    """The step stands last: where the terminal is narrow, the last column alone keeps its intervals."""
    names = list(result.columns)
    per_sample = ["ms/sample"] if result.batch_varies else []
    rows: list[Sequence[Cell | str]] = [
        (
            *(str(row[name]) for name in names),
            *(f"{1e3 * row['step_s'] / result.samples(row):.2f}" for _ in per_sample),
            f"{row['cost_per_step_usd']:.2f}",
            *(cell(interval_in(row, f"{part}_speedup"), 2, "x") for part in ("rollout", "end_to_end")),
            cell(interval_in(row, "step_s"), 1),
        )
        for row in shown
    ]
    title = f"Fastest {len(shown)}" + (" by time per consumed sample" if result.batch_varies else "")
    heads = [*(name.rpartition(".")[2] for name in names), *per_sample, "USD/step", "rollout", "end to end", "step (s)"]
    sides = [">" if all(isinstance(row[name], int | float) for row in shown) else "<" for name in names]
    return Table(title, "mean [90 % interval]", heads, rows, "".join(sides) + ">")


def eager_remark(cells: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """What hangs on an engine's captured graphs, where some of the named cells go beyond them."""
    beyond = [(row["eager_share"], name) for name, row in cells if row.get("eager_share", 0.0) > NOTABLE_EAGER_SHARE]
    if not beyond:
        return []
    share, worst = max(beyond, key=lambda one: one[0])
    limits = sorted({int(row["captured_tokens"]) for _, row in cells})
    return [
        f"Warning: {len(beyond)} of {len(cells)} go beyond the largest captured CUDA graph "
        f"({' or '.join(map(str, limits))} tokens, engine.max_captured_tokens), up to {fmt.percent(share)} of the "
        f"iterations ({worst}). What a launch costs is known within a factor of two, and the limit is the engine's "
        "default unless stated: check what yours captures before you choose by this cliff."
    ]


def price_remark(usd_per_gpu_hour: Iterable[float], source: str = "") -> str:
    """The price behind all that is said of money, and where it comes from."""
    shown = " or ".join(sorted({f"{price:.2f}" for price in usd_per_gpu_hour}))
    return f"USD at {shown} per GPU and hour (hardware.price_per_gpu_hour_usd{source and f', {source}'})"


def _break_even(result: SweepResult, style: Style) -> list[str]:
    names = list(result.columns)
    draft = next((name for name in DRAFT_KEYS if name in names), None)
    if draft is None or sorted(names) != sorted([draft, ACCEPTANCE_KEY]):
        return []
    lengths = break_even_lengths(result.done, draft)
    if not lengths:
        ahead = {row["rollout_speedup"] > 1.0 for row in result.done}
        does = "does better or worse than none" if len(ahead) > 1 else "wins" if True in ahead else "loses"
        return [f"Each draft length {does} at all of these acceptance lengths; none breaks even between them."]
    rows = [(str(k), f"{length:.2f}") for k, length in lengths.items()]
    title = "The rollout breaks even at acceptance length"
    return Table(title, "", ("k", "acceptance length"), rows, ">").lines(style)


def _reasons(result: SweepResult, style: Style) -> list[str]:
    reasons = Counter(f"{row['status']}: {row['reason']}" for row in result.rows if row["status"] != "ok")
    rows = [(str(count), reason) for reason, count in reasons.most_common(SHOWN)]
    if len(reasons) > SHOWN:
        rows.append(("", f"and {len(reasons) - SHOWN} more reasons"))
    return Table("Cells that cannot run", "", ("", ""), rows, "><").lines(style)
