"""Peaks of device memory."""

from __future__ import annotations

import torch


class MemoryPeaks:
    """Most bytes of a GPU's memory that this process's tensors took, and that torch held for them, phase by phase."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.taken("")

    def taken(self, phase: str) -> dict[str, int]:
        """Peaks since they were asked for last, as facts of an event; none on a CPU."""
        if not self.on_gpu:
            return {}
        found = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        return dict(zip((f"{phase}_peak_bytes", f"{phase}_reserved_bytes"), found, strict=True))
