"""The event core in C: the rules of ``replica``, ``pool`` and ``agents`` over arrays, for speed alone.

Optional: without it (no compiler at installation, or ``RLSIM_KERNEL=python``) the Python classes run, which stay the
reference. Both give equal bits, so no answer depends on which one runs.
"""
