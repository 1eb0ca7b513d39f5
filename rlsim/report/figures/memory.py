"""Memory of a GPU over the step: a stack of parts for each phase, beside the line of what the device has."""

from matplotlib.figure import Figure

from rlsim.report import format as fmt
from rlsim.report.figures.style import DPI, GREY, INK, LINE_COLORS, picture_style
from rlsim.results import Projection
from rlsim.units import GIB

WIDTH_IN, HEIGHT_IN = 9.0, 4.4
SHADES = (*LINE_COLORS, "#F0E442", GREY, "#9467BD", "#BCBD22", "#C49C94", "#7F7F7F")
"""One for each part; as many as a GPU can have."""
LEAST_GIB = 0.05
"""A part below that is not drawn."""


@picture_style()
def memory_figure(projection: Projection) -> Figure:
    """Stacked parts of each phase of the candidate, in GiB, with what the GPU of the phase has."""
    phases = projection.candidate.memory_phases
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(name for use in phases.values() for name in use.parts_bytes))
    names = [name for name in names if any(use.parts_bytes.get(name, 0) > LEAST_GIB * GIB for use in phases.values())]
    bottoms = [0.0] * len(phases)
    for color, name in zip(SHADES, names, strict=False):
        heights = [use.parts_bytes.get(name, 0.0) / GIB for use in phases.values()]
        axes.bar(range(len(phases)), heights, bottom=bottoms, width=0.6, color=color, label=name)
        bottoms = [low + height for low, height in zip(bottoms, heights, strict=True)]
    for place, (use, top) in enumerate(zip(phases.values(), bottoms, strict=True)):
        available = use.available_bytes / GIB
        axes.plot([place - 0.4, place + 0.4], [available] * 2, color=INK, linewidth=1.6)
        axes.text(place, top + 0.01 * available, f"{fmt.gibibytes(use.total_bytes)}", ha="center", va="bottom")
    axes.set_xticks(range(len(phases)), list(phases))
    axes.set_ylabel("GiB of a GPU")
    axes.set_ylim(0, 1.08 * max((use.available_bytes for use in phases.values()), default=GIB) / GIB)
    axes.set_title(f"{projection.scenario}: memory over the step (line: what the device has)", loc="left", fontsize=11)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
    return figure
