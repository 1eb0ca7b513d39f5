"""What a weight transfer needs of models without a card and of GPUs without a profile: bytes, tensors and links."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rlsim.costs.layout import TENSORS_PER_ATTENTION, TENSORS_PER_EXPERT, TENSORS_PER_FFN, weight_tensors
from rlsim.costs.memory import weight_bytes
from rlsim.costs.refit_methods import Links
from rlsim.costs.weight_transfer import expert_share, links_of, stacked_tensors
from rlsim.evidence.names import device_profile_name, model_card_name
from rlsim.evidence.tables import Row, SkippedRow, number
from rlsim.hardware.cards import load_card
from rlsim.hardware.profile import load_profile

ASSUMED_GPU = "h100"
"""NeMo-RL's checkpoint-engine guide names no GPU; its nodes have eight, and its recipes of that size run on H100."""
GB = 1e9


@dataclass(frozen=True)
class Weights:
    """Weights of a model. tensors, stacked_tensors: as in TransferJob; estimated: these follow from the size alone."""

    bytes: float
    tensors: float
    stacked_tensors: float
    expert_share: float
    estimated: bool = False


@dataclass(frozen=True)
class _Shape:
    """Layers and experts of a published config.json; dense: layers without experts; matrices: of one expert."""

    layers: int
    experts: int = 0
    shared: int = 0
    dense: int = 0
    matrices: int = TENSORS_PER_EXPERT

    def tensors(self, experts: int) -> float:
        """Weight tensors with ``experts`` routed experts in each layer that has any."""
        if not self.experts:
            return self.layers * (TENSORS_PER_ATTENTION + TENSORS_PER_FFN) + 3
        sparse = TENSORS_PER_ATTENTION + 1 + self.matrices * (experts + self.shared)
        return self.dense * (TENSORS_PER_ATTENTION + TENSORS_PER_FFN) + (self.layers - self.dense) * sparse + 3


SHAPES = {
    "nemotron nano v3 30b-a3b": _Shape(52, 128, 1, 29, 2),
    "nemotron nano 3": _Shape(52, 128, 1, 29, 2),
}
"""Shapes by the configurations that their publishers give. Nemotron Nano: 23 of 52 layers have experts, of two matrices
each."""
ESTIMATED_SPARSE = (_Shape(48, 128), _Shape(61, 256, 1, 3))
"""Shape taken for a mixture of experts that is not known, below and above 200e9 parameters: those of Qwen3-30B-A3B and
DeepSeek-V3."""
SPARSE_ABOVE = 200e9
ESTIMATED_EXPERT_SHARE = 0.95
"""Share of routed experts in the parameters of such a model: 0.95 to 0.97 in Qwen3 and DeepSeek-V3."""
LAYER_WIDTH = 128
"""Hidden units per layer of a dense model that is not known: 80 to 130 from 7B to 72B; parameters are 12 x layers x
hidden units squared."""
_SIZE_NAME = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b\b")
_SPARSE_NAME = re.compile(r"-a\d+(\.\d+)?b\b|\bmoe\b", re.IGNORECASE)
LINKS = {
    "h800": ("h100_sxm", 200e9),
    "h20": ("h100_sxm", 450e9),
    "a800": ("a100_sxm", 200e9),
}
"""GPUs without a profile: another whose further links they have, and their own NVLink rate in bytes/s and direction.
H800: 400 GB/s in both directions and eight 400 Gb/s ports a node (arXiv 2505.09343, section 4); H20: 900; A800: 400."""


def weights_of(cells: Row) -> Weights:
    """Weights of the row's model: of its card, else the row's bytes with its published or estimated shape."""
    try:
        card = load_card(model_card_name(cells["model"]))
    except SkippedRow:
        return _weights_without_card(cells)
    share = expert_share(card)
    found = Weights(weight_bytes(card, "bf16"), weight_tensors(card), stacked_tensors(card), share)
    stated = number(cells, "weight_gb", 0.0) * GB
    # A checkpoint in FP8 travels as it is; a figure that is parameters times two says no more than the card.
    return replace(found, bytes=stated) if 0 < stated < 0.75 * found.bytes else found


def _weights_without_card(cells: Row) -> Weights:
    name = re.sub(r"-(instruct|base|chat|thinking|2507)\b", "", cells["model"].split("/")[-1].lower())
    named = _SIZE_NAME.search(name)
    parameters = number(cells, "params_total_b", float(named.group(1)) if named else 0.0) * GB
    held = number(cells, "weight_gb", 2 * parameters / GB) * GB
    if held <= 0:
        raise SkippedRow(f"no model card for {cells['model'][:60]!r}, and weight_gb is not given")
    shape = SHAPES.get(name)
    estimated = shape is None
    if shape is None:
        parameters = parameters or held / 2
        if _SPARSE_NAME.search(name):
            shape = ESTIMATED_SPARSE[parameters > SPARSE_ABOVE]
        else:
            shape = _Shape(max(1, round((parameters / 12 / LAYER_WIDTH**2) ** (1 / 3))))
    share = ESTIMATED_EXPERT_SHARE if shape.experts else 0.0
    return Weights(held, shape.tensors(shape.experts), shape.tensors(1), share, estimated)


def links_of_row(gpu: str) -> Links:
    """Links of a GPU as a table calls it: of its profile, else of :data:`LINKS`; SkippedRow where it has neither."""
    name = gpu.split("/")[0].strip() or ASSUMED_GPU
    base, nvlink = LINKS.get(name.lower().split(" ")[0], ("", 0.0))
    links = links_of(load_profile(base or device_profile_name(name)))
    return replace(links, nvlink_bytes_per_s=nvlink) if nvlink else links
