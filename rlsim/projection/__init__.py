"""Candidate beside baseline: one variant simulated, summarised with its uncertainty, assumptions said."""
