"""Sliders in a notebook."""

from __future__ import annotations

from html import escape
from typing import Any

from rlsim.errors import InputError, RlsimError
from rlsim.explore.live import Live, Moved
from rlsim.loading.scenario import load_scenario
from rlsim.schema.scenario import Scenario


def live(scenario: Scenario | str) -> Any:
    """Sliders over a scenario, or over the file or bundled name of one, and the answer that follows them, as a widget.

    Needs ipywidgets (``pip install rlsim[live]``); raises InputError where it is missing.
    """
    try:
        from ipywidgets import HTML, SelectionSlider, VBox
    except ImportError:
        raise InputError("rlsim.live needs ipywidgets: pip install ipywidgets") from None
    name = scenario if isinstance(scenario, str) else ""
    warm = Live(load_scenario(scenario) if isinstance(scenario, str) else scenario, name)
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
