"""Predicted beside measured: published and own runs, built into scenarios and simulated."""

from enum import StrEnum


class Kind(StrEnum):
    """What one row of a table measured. The command line shows the kinds before it loads what reads tables."""

    STEPS = "steps"
    ITERATIONS = "iterations"
    TRAINING = "training"
    TRANSFERS = "transfers"
    PHASES = "phases"
    CURVES = "curves"
    ROLLOUTS = "rollouts"
    WILD = "wild"
    SPECULATION = "speculation"
    MEMORY = "memory"
