"""What agents occupy over time: engines, sandboxes and KV cache."""

from matplotlib.figure import Figure

from rlsim.report.figures.phases import OTHER_LINES, in_view
from rlsim.report.figures.style import DPI, GREY, INK, VARIANT_COLORS, picture_style
from rlsim.report.timeline import TRAINER, window_of
from rlsim.results import Projection
from rlsim.results.projection import CAPACITY, CONTEXTS, IN_ENGINES, IN_SANDBOXES

WIDTH_IN, HEIGHT_IN = 11.0, 6.0
MILLION = 1e6


@picture_style()
def occupancy_figure(projection: Projection) -> Figure | None:
    """Of the candidate, over the last steps: turns in engines with the times of the trainer behind them, trajectories
    in sandboxes, with their environments and judge, and context tokens in engines below what their caches hold; None
    without agents."""
    name, arm = [*projection.variants.items()][-1]
    found = {curve.name: curve for curve in arm.curves}
    if IN_SANDBOXES not in found:
        return None
    trainer = [span for span in arm.spans if span.actor == TRAINER]
    window = window_of(iter(trainer)) if projection.asynchronous else None
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI, facecolor="white", layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    waiting = [one for one in found if one.startswith("trajectories with")]
    shown = ([IN_ENGINES], [IN_SANDBOXES, *waiting], [CONTEXTS, CAPACITY])
    labels = {CONTEXTS: "of turns in engines and their queues", CAPACITY: "capacity of all caches"}
    titles = ("GPUs: turns in engines", "Sandboxes: trajectories", "KV cache: context with which turns began, M tokens")
    for axes, title, names in zip(panels, titles, shown, strict=True):
        for each, line in zip(names, ("-", *OTHER_LINES), strict=False):
            times, values = in_view(found[each], window)
            scale = MILLION if each in labels else 1.0
            style = {"color": VARIANT_COLORS[name] if line == "-" else INK, "linewidth": 1.6 if line == "-" else 1.1}
            label = labels.get(each, each.removeprefix("trajectories ")) if len(names) > 1 else None
            axes.step(times, values / scale, line, where="post", label=label, **style)
        axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        if len(names) > 1:
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=9)
    if window is not None:
        for span in trainer:
            if span.end_s > window[0] and span.phase != "exposed_generation_s":
                ends = max(span.start_s, window[0]) - window[0], min(span.end_s, window[1]) - window[0]
                panels[0].axvspan(*ends, color=GREY, alpha=0.15, linewidth=0)
        panels[0].annotate(
            "grey: the trainer works", (1.0, 1.02), xycoords="axes fraction", ha="right", color=GREY, fontsize=9
        )
    panels[-1].set_xlabel("seconds" if window is not None else "seconds since the step began")
    return figure
