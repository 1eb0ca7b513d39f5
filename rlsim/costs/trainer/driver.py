"""The padded batch through one driver, where a framework hands it on so."""

from rlsim.costs.interface import Part

PADDED_BATCH = "padded batch"
COLLECTED_BYTES, LOGPROB_BYTES, UPDATE_BYTES = 32, 48, 60
"""Bytes that a driver moves for each position of the padded batch: prompts, responses, input, mask and positions of 8
bytes as engines return them (verl b25bb7d4f, vllm_rollout_spmd.py:387-401); these with the response mask to log-probs,
which return log-probs and entropies of 4; these with log-probs, scores, rewards, advantages and returns of 4 to the
update (ray_trainer.py:1030-1150). Counted there; the rate beside them is fitted."""


def handed_over(positions: int, bytes_per_s: float | None, bytes_per_position: float) -> Part:
    """A driver's work on ``positions`` of the padded batch at ``bytes_per_s``; nothing where it does not go through
    one."""
    seconds = 0.0 if bytes_per_s is None else positions * bytes_per_position / bytes_per_s
    return Part(PADDED_BATCH, seconds, "host", "assumed")
