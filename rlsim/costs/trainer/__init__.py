"""Seconds of a trainer: layouts, packing, layers, passes, updates."""
