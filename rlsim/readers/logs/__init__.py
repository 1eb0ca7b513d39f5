"""Logs of real runs: their phases beside those predicted, what explains the difference, and what else would take."""
