"""Configurations of RL frameworks as scenarios, and scenarios as overrides of configurations."""
