"""Research on rlsim, run by hand as ``python -m research.X`` from a checkout: studies and the accuracy document."""
