"""A small RL loop that really runs: continuous batching, drafts, log-probs, GRPO and weight hand-over."""
