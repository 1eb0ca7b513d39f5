"""Shell scripts that launch runs, read for the words of their commands; no program is run."""
