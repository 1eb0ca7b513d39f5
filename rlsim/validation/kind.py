"""Names of the kinds of tables, which the command line shows before it loads what validates them."""

from enum import StrEnum


class Kind(StrEnum):
    """What one row of a table measured."""

    STEPS = "steps"
    ITERATIONS = "iterations"
    TRAINING = "training"
    TRANSFERS = "transfers"
    PHASES = "phases"
    CURVES = "curves"
