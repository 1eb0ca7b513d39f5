"""Seconds of moving weights: refit methods, links, offload."""
