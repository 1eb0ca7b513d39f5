"""The command line: parse, one library call, print. Whatever is heavy is imported inside the commands."""

from rlsim.cli.main import app, main

__all__ = ["app", "main"]
