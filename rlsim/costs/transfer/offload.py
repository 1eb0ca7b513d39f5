"""Seconds of copies between a GPU and its host: what a colocated trainer and engine make room with.

A copy out to new pageable memory waits for the host to fault its pages in, tensor by tensor (NVIDIA-NeMo/RL issue 3976:
4.94 GB in 510 copies took 2.75 s, the same host 16 GB/s for one large pageable copy and 55 GB/s pinned); one to or from
pinned memory runs at the rate of the link (Megatron-LM pull request 6491: 170 to 182 GB/s with all GPUs of a GB300
node).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlsim.costs.transfer.methods import Links
from rlsim.schema.transfer_parameters import TransferValues


@dataclass(frozen=True)
class HostCopies:
    """Copies of one GPU while the others of its node copy too. pinned: host memory that the device can address.

    line: at the rate of the link, as nothing can be faster.
    """

    values: TransferValues
    links: Links
    pinned: bool
    line: bool = False

    @property
    def _link(self) -> float:
        return self.links.host_bytes_per_s * self.values.host_link_share

    def out_s(self, copied_bytes: float, copies: float) -> float:
        """GPU to host, in ``copies`` tensors."""
        return self._seconds(copied_bytes, copies, self._pageable_out)

    def in_s(self, copied_bytes: float, copies: float) -> float:
        """Host to GPU, in ``copies`` tensors."""
        # Its pages are there already: never slower than the copy out, which must fault them in.
        return self._seconds(copied_bytes, copies, max(self.values.pageable_in_bytes_per_s, self._pageable_out))

    @property
    def _pageable_out(self) -> float:
        values = self.values
        return values.pageable_out_grace_bytes_per_s if self.links.grace else values.pageable_out_bytes_per_s

    def _seconds(self, copied_bytes: float, copies: float, pageable: float) -> float:
        if self.line:
            return copied_bytes / self.links.host_bytes_per_s
        if self.pinned:
            return copied_bytes / self._link
        return copied_bytes / min(pageable, self._link) + copies * self.values.copy_s
