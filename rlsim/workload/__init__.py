"""Speculative decoding: the acceptance process and the drafters."""
