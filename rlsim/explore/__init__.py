"""Warm answers: a scenario kept ready, moved by sliders, in a notebook or on a local page."""
