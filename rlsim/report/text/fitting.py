"""A run before it starts, and how far keys may grow, as text for a terminal."""

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.text.projection import held_text
from rlsim.results.fitting import Cliffs, EnoughPlaces, FreeKeys, Preflight
from rlsim.results.record import Interval


def render_preflight(answer: Preflight, style: Style = DEFAULT_STYLE) -> str:
    """Step, price, memory and one faster layout, or why it cannot run."""
    out = []
    if answer.runs and answer.step_s is not None:
        step, usd = _seconds(answer.step_s), f"{answer.usd_per_step:,.2f}"
        out += style.wrapped(f"{answer.scenario} on {answer.cluster}: a step of {step}, {usd} USD", indent=2)
        out += style.wrapped(held_text(answer.memory), "  ", 4)
    else:
        out += style.wrapped(f"{answer.scenario} on {answer.cluster} cannot run: {answer.reason}", indent=2)
        if answer.settings:
            out += style.wrapped(f"each of these alone makes it fit: {', '.join(answer.settings)}", "  ", 4)
    if answer.better is not None:
        layout = answer.better
        text = f"a layout that runs: {layout.name}: a step of {_seconds(layout.step_s)}, {layout.usd_per_step:,.2f} USD"
        if layout.speedup is not None and layout.shorter is not None:
            sure = fmt.percent(layout.shorter)
            text = f"a faster layout: {layout.name}: {layout.speedup:.2f}x, shorter with a probability of {sure}"
        out += style.wrapped(f"{text}: {' '.join(layout.changes)}", "  ", 4)
    for text in answer.missing:
        out += style.wrapped(text, "  ", 4)
    return "\n".join(out)


def render_free(answer: FreeKeys, style: Style = DEFAULT_STYLE) -> str:
    """Keys with their largest values, and what refuses the next ones."""
    sure = fmt.percent(answer.fit_probability)
    title = f"{answer.scenario}: the largest value of each key alone, fitting with {sure} (simulation.fit_probability)"
    out = style.wrapped(title, indent=2)
    for one in answer.keys:
        limit = f"; beyond: {one.limit}" if one.limit else "; no limit found up to there"
        out += style.wrapped(f"{one.key}={one.largest:.10g} ({one.room:.3g}x of {one.now:.10g}){limit}", "  ", 4)
    return "\n".join(out)


def render_enough(answer: EnoughPlaces, style: Style = DEFAULT_STYLE) -> str:
    """Limits with the fewest places that cost no more than the tolerance, and all of them at once."""
    within = fmt.percent(answer.tolerance)
    title = f"{answer.scenario}: the fewest places of each limit alone whose step is within {within} of that without it"
    out = style.wrapped(title, indent=2)
    for one in answer.keys:
        now = "no limit" if one.now is None else f"{one.now:,}"
        times = f"{one.enough_step_s:.4g} s; {now} now: {one.now_step_s:.4g}; without it {one.unlimited_step_s:.4g}"
        out += style.wrapped(f"{one.key}={one.enough}: a step of {times}", "  ", 4)
    if len(answer.keys) > 1:
        out += style.wrapped(f"all of them at once: a step of {answer.together_step_s:.4g} s", "  ", 4)
    return "\n".join(out)


def render_cliffs(answer: Cliffs, style: Style = DEFAULT_STYLE) -> str:
    """One line for each cliff: where it lies, what happens there, the step before and after."""
    now = f"{answer.scenario}: {answer.key}={answer.now:.10g}, a step of {answer.step_s:.4g} s; cliffs around it"
    out = style.wrapped(now if answer.cliffs else f"{now}: none found", indent=2)
    for one in answer.cliffs:
        after = "does not run" if one.beyond_step_s is None else f"{one.beyond_step_s:.4g} s"
        text = f"{one.value:.10g} -> {one.beyond:.10g}: {one.text}; {one.step_s:.4g} s -> {after}"
        out += style.wrapped(text, "  ", 4)
    return "\n".join(out)


def _seconds(quantity: Interval) -> str:
    return f"{quantity.mean:.4g} s [{quantity.low:.4g}, {quantity.high:.4g}]"
