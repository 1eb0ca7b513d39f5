"""``python -m rlsim``, for installations whose programs are not on the path."""

from rlsim.cli import main

if __name__ == "__main__":  # doctest collection imports this module
    main()
