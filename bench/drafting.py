"""Draft passes in and out of CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.cases import Case
from bench.launches import enqueue_seconds, kernel_count, require_graphs
from bench.measurements import Facts
from bench.speculation import (
    DraftHead,
    Sampling,
    State,
    Target,
    draft_pass,
    draft_token,
    first_draft_pass,
    random_state,
)
from bench.timing import Call, capture, warm_up
from bench.transformer import cache_capacity
from bench.workbench import Prepared, Workbench

_SAMPLING = Sampling()


@dataclass(frozen=True)
class _Passes:
    """k draft passes as calls of their own, which hand their hidden state [B, 1, H] and token [B] on in place."""

    head: DraftHead
    target: Target
    state: State
    kernel: str
    hidden: Tensor
    token: Tensor

    def calls(self, k: int) -> list[Call]:
        """The passes in their order."""
        return [self._first, *(self._later(step) for step in range(1, k))]

    def _first(self) -> None:
        self._keep(first_draft_pass(self.head, self.target, self.state, self.kernel))

    def _later(self, step: int) -> Call:
        def call() -> None:
            lengths = self.state.lengths + (step - 1)
            tokens = self.token[:, None]
            self._keep(draft_pass(self.head, self.target, self.state, tokens, self.hidden, lengths, self.kernel))

        return call

    def _keep(self, hidden: Tensor) -> None:
        index, _ = draft_token(self.head, hidden, _SAMPLING)
        self.hidden.copy_(hidden)
        self.token.copy_(self.head.to_target[index])


def _draft_passes(case: Case, on: Workbench) -> Prepared:
    """k draft passes of a step: ``one_graph`` replays all of them as one graph, ``graph_each`` one graph after the
    other, ``eager`` launches every kernel.
    """
    mode, batch, k, context = (case.text("mode"), *(case.number(n) for n in ("batch", "draft_length", "context")))
    require_graphs(mode, on.device)
    target, head = on.model(case.text("model"), case.number("layers"))
    state = random_state(target, batch, context, k, cache_capacity(context + k + 1))
    hidden, token = on.random(batch, 1, head.dims.hidden), torch.zeros(batch, dtype=torch.long, device=on.device)
    calls = _Passes(head, target, state, on.kernels(head.dims)[0], hidden, token).calls(k)

    def all_passes() -> None:
        for call in calls:
            call()

    facts = Facts(kernels=kernel_count(all_passes, on.device))
    if mode == "graph_each":
        warm_up(calls)
        replays = [capture([call]) for call in calls]

        def replay_each() -> None:
            for replay in replays:
                replay()

        return Prepared([replay_each], mode="eager", facts=facts)
    if mode == "one_graph":
        return Prepared([all_passes], facts=facts)
    return Prepared([all_passes], mode="eager", facts=replace(facts, host_s=enqueue_seconds(all_passes, on.device)))


DRAFT_OPERATORS: dict[str, Callable[[Case, Workbench], Prepared]] = {"draft_passes": _draft_passes}
