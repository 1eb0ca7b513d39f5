"""Help for those who write scenarios: what a key means, a first scenario, what supports a choice."""
