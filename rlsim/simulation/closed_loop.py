"""One replica under a closed loop: a fixed number of clients, each of which asks again once it is answered.

This is how serving benchmarks load an engine. The replica keeps its own rules: prompts are prefilled in chunks beside
decoding, and nothing is shared between requests.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from rlsim.costs.interface import IterationTable
from rlsim.simulation.replica import Replica
from rlsim.simulation.requests import Request


class Served(Struct, frozen=True):
    """When a request arrived, emitted its first token and completed, in seconds from the start of the loop."""

    request: Request
    arrival_s: float
    first_token_s: float
    end_s: float

    @property
    def ttft_s(self) -> float:
        """Time to the first token in seconds, waiting for the engine included."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Seconds per output token after the first; 0 where there is no other."""
        return (self.end_s - self.first_token_s) / max(1, self.request.response_tokens - 1)


class _Server(Replica):
    """A replica that notes when each request emitted its first token, and looks for new requests now and then.

    receive_interval: decode iterations between two looks. It also looks after a prefill, and where it would be idle.
    """

    def __init__(self, table: IterationTable, receive_interval: int) -> None:
        super().__init__(table, prefix_caching=False)
        self.first_token_s: dict[int, float] = {}
        self._receive_interval = receive_interval
        self._looked = 0
        self._unseen: list[Request] = []

    @property
    def open(self) -> bool:
        """Whether requests are unanswered."""
        return bool(self.outstanding or self._unseen)

    def submit(self, time_s: float, samples: Iterable[Request]) -> None:
        """Queue samples as :meth:`Replica.submit` does, once the engine looks for them."""
        self._unseen += samples
        if self._receive_interval == 1:
            self._look()

    def _look(self) -> None:
        unseen, self._unseen, self._looked = self._unseen, [], self._iteration
        if unseen:
            super().submit(self.now_s, unseen)

    def _begin(self) -> None:
        passed = self._iteration - self._looked
        if not self._running or (passed and passed % self._receive_interval == 0):
            self._look()
        super()._begin()

    def _begin_segment(self, kv: float) -> None:
        super()._begin_segment(kv)
        left = self._receive_interval - (self._iteration - self._looked) % self._receive_interval
        if self._unseen and left < self._segment_iterations:
            decoding, growth = len(self._running), self._tokens_per_iteration
            context = (self._context_at_zero + self._iteration * growth) / decoding
            self._segment_iterations = self._decoded = left
            self._end_s = self.now_s + self._timing.segment(decoding, context, growth / decoding, left)

    def _start_decoding(self, end_s: float, done: list[tuple[float, int]]) -> None:
        for sequence in self._prefilled:
            self.first_token_s.setdefault(sequence.id, end_s)
        super()._start_decoding(end_s, done)
        self._looked = self._iteration - self._receive_interval


def closed_loop(
    table: IterationTable, requests: Sequence[Request], concurrency: int, last: int, receive_interval: int = 1
) -> list[Served]:
    """The first ``last`` requests of a loop that keeps ``concurrency`` of them in the engine, in their order.

    requests: in the order in which clients ask, ids 0, 1, 2...; the loop ends when the first ``last`` are answered, so
    ``last + concurrency`` of them keep it full to the end. receive_interval: decode iterations between two looks of the
    engine for new requests (SGLang's ``scheduler_recv_interval``). Raises Infeasible where one cannot fit the KV cache.
    """
    replica = _Server(table, receive_interval)
    asked = min(concurrency, len(requests))
    arrival_s = [0.0] * asked
    replica.submit(0.0, requests[:asked])
    end_s: dict[int, float] = {}
    open_requests = min(last, len(requests))
    while open_requests and replica.open:
        for time_s, number in replica.advance_to(replica.next_event_time()):
            end_s[number] = time_s
            open_requests -= number < last
            if asked < len(requests):
                arrival_s.append(time_s)
                replica.submit(time_s, requests[asked : asked + 1])
                asked += 1
    first = replica.first_token_s
    return [Served(r, arrival_s[r.id], first[r.id], end_s[r.id]) for r in requests[:last]]
