"""A machine as the host of rollout engines, as text for a terminal and as a section of a scenario."""

from rlsim.report.style import Style
from rlsim.report.table import table
from rlsim.results.host import HostSpeed


def host_text(found: HostSpeed, reference: str, style: Style) -> str:
    """The figures, the class with its reason, and what they mean for a scenario. reference: what the absolute figure is
    over."""
    beside = f"{found.beside} at once" if found.beside > 1 else "1 core"
    rows = [
        ("one thread", f"{found.round_s * 1e6:.0f} us a round", f"{found.single:.2f} times the reference"),
        ("jitter", f"p99 {found.jitter:.2f} times p50", f"without a core {found.waited_share:.1%} of the time"),
        ("beside each other", beside, f"{found.busy:.2f} times as long as alone"),
        (
            "cores that may be used",
            f"{found.cores:g}",
            f"for {found.processes} processes of engines: {found.share:.2f} each",
        ),
    ]
    lines = [f"{found.processor}, Python {found.python}", *table(("", "", ""), rows, style, "<"), ""]
    lines += [
        f"class: {found.host} ({found.reason})",
        f"host work of engines: {found.slowdown:.2f} times as long as on {reference}:",
        f"  engine.host_slowdown={found.slowdown:.3g}, or engine.host={found.host} where engines run elsewhere",
        "Assumed: it goes with one thread's time, and all processes of engines are busy (a bound where some wait).",
        "No engine of the fit ran on the reference: intervals hold what servers differ by (31 %).",
    ]
    return "\n".join(lines)


def ratio_text(found: HostSpeed, other: HostSpeed) -> str:
    """Host work of one machine over another's, both measured so: no reference is in it."""
    ratio = found.slowdown / other.slowdown
    return (
        f"over {other.processor} (class {other.host}): {ratio:.2f} times as long; an engine.host_iteration_s that was "
        "measured there is so much longer here"
    )


def host_section(found: HostSpeed) -> str:
    """The section ``engine`` of a scenario with what was measured, and the figures as a remark."""
    return (
        f"# rlsim calibrate host: {found.processor}, Python {found.python}; class {found.host}, {found.reason};\n"
        f"# one thread {found.single:.3g} x beside each other {found.busy:.3g} x processes a core {found.share:.3g}\n"
        f"engine: {{host_slowdown: {found.slowdown:.3g}}}\n"
    )
