"""Studies that import rlsim and are run by hand; no part of the wheel."""
