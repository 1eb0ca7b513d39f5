"""Blame: why GPUs are idle in a step, and what removing each cause would gain."""
