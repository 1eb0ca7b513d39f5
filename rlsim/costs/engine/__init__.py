"""Seconds of an inference engine: layers, iterations, drafting, graphs."""
