"""Who drafts: a smaller model with a cache of its own, or a look-up in the tokens so far."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.loop.policy import CachedModel, draft_model
from bench.rejection import Draft, draw, sampling_probabilities
from bench.speculation import Target


class DraftModel:
    """k passes of a smaller model. The first one takes the last two tokens: where all drafts were accepted, the one
    before the last was never in this cache; elsewhere it is computed once more, to the same values."""

    def __init__(self, policy: Target, rows: int, capacity: int, temperature: float) -> None:
        self.cached, self.temperature = CachedModel(draft_model(policy), rows, capacity), temperature

    def propose(self, history: Tensor, lengths: Tensor, k: int, seen: int, generator: torch.Generator | None) -> Draft:
        """k tokens behind each row: ``history`` [n, slots] holds its tokens, the last one at ``lengths`` [n], and no
        row has more than ``seen`` slots with the drafted ones."""
        rows = slice(0, lengths.shape[0])
        fed, at = history.gather(1, torch.stack([lengths - 1, lengths], 1)), lengths - 1
        tokens, probabilities = [], []
        for step in range(k):
            hidden = self.cached.forward(fed, at, rows, seen)
            probability = sampling_probabilities(self.cached.logits(hidden[:, -1]), self.temperature)
            token = draw(probability, generator)
            tokens.append(token)
            probabilities.append(probability)
            fed, at = token[:, None], lengths + step + 1
        return Draft(torch.stack(tokens, 1), torch.stack(probabilities, 1))

    def prefill(self, tokens: Tensor, rows: slice) -> None:
        """Prompts [m, P] of sequences that join."""
        start = torch.zeros(tokens.shape[0], dtype=torch.long, device=tokens.device)
        self.cached.forward(tokens, start, rows, tokens.shape[1])

    def move(self, source: int, target: int, slots: int) -> None:
        """The sequence of one row to another one."""
        self.cached.move(source, target, slots)


class NGram:
    """What followed the latest earlier place where the last two tokens stood, else the last one; else repetition."""

    def propose(self, history: Tensor, lengths: Tensor, k: int, seen: int, generator: torch.Generator | None) -> Draft:
        """k tokens behind each row, as of :meth:`DraftModel.propose`; no distribution, one-hot at each token."""
        n, device = lengths.shape[0], history.device
        known, place = history[:, :seen], torch.arange(seen, device=device)
        last = history.gather(1, lengths[:, None])
        before = history.gather(1, lengths[:, None] - 1)
        same = (known == last) & (place < lengths[:, None])
        shifted = torch.cat([torch.full((n, 1), -1, device=device), known[:, :-1]], 1)
        # A pair counts more than any single token, the latest place of each kind most.
        score = torch.where(same, place + seen * (shifted == before), -1)
        best, found = score.max(1).values, score.argmax(1)
        start = torch.where(best >= 0, found, lengths)
        follows = torch.minimum(start[:, None] + 1 + torch.arange(k, device=device), lengths[:, None])
        return Draft(history.gather(1, follows))

    def prefill(self, tokens: Tensor, rows: slice) -> None:
        """Nothing: the tokens are in the history."""

    def move(self, source: int, target: int, slots: int) -> None:
        """Nothing either."""
