"""Measured weight transfers between trainer and engine beside those of the cost model."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from rlsim.costs.memory import weight_bytes
from rlsim.costs.operators.groups import transfer_groups
from rlsim.costs.trainer.layout import TENSORS_PER_ATTENTION, TENSORS_PER_EXPERT, TENSORS_PER_FFN, weight_tensors
from rlsim.costs.transfer.job import OPTIMIZER_TENSORS, HostCopies, expert_share, links_of
from rlsim.costs.transfer.methods import Links, Method, Receiver, Sender, TransferJob, TransferTerms, transfer_parts
from rlsim.costs.users import EVERY
from rlsim.evidence.rows import (
    FLAGGED,
    FURTHER_SPREAD,
    Comparison,
    MeasuredRow,
    Predict,
    Prediction,
    device_profile_name,
    model_card_name,
)
from rlsim.evidence.tables import Row, SkippedRow, Table, measured_value, number, whole_number
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import load_card
from rlsim.parameters.sets import Fitted
from rlsim.parameters.users import deviation_of, load_user_runs
from rlsim.results.validation import ComparedRow
from rlsim.schema.engine_parameters import OTHER
from rlsim.tables.profile import load_profile

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
        # The 1 is the router; the 3 below are embedding, last norm and head.
        sparse = TENSORS_PER_ATTENTION + 1 + self.matrices * (experts + self.shared)
        return self.dense * (TENSORS_PER_ATTENTION + TENSORS_PER_FFN) + (self.layers - self.dense) * sparse + 3


SHAPES = {name: _Shape(**shape) for name, shape in lists_beside(__file__)["shapes"].items()}
ESTIMATED_SPARSE = tuple(_Shape(**shape) for shape in lists_beside(__file__)["estimated_sparse"])
"""Shape taken for a mixture of experts that is not known, below and above SPARSE_ABOVE parameters."""
SPARSE_ABOVE = 200e9
ESTIMATED_EXPERT_SHARE = 0.95
"""Share of routed experts in the parameters of such a model: 0.95 to 0.97 in Qwen3 and DeepSeek-V3."""
LAYER_WIDTH = 128
"""Hidden units per layer of a dense model that is not known: 80 to 130 from 7B to 72B; parameters are 12 x layers x
hidden units squared."""
_SIZE_NAME = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b\b")
_SPARSE_NAME = re.compile(r"-a\d+(\.\d+)?b\b|\bmoe\b", re.IGNORECASE)
LINKS: Mapping[str, tuple[str, float]] = lists_beside(__file__)["links"]
"""GPUs without a profile: another whose further links they have, and their own NVLink rate in bytes/s."""


def weights_of(cells: Row) -> Weights:
    """Weights of the row's model: of its card, else the row's bytes with its published or estimated shape."""
    try:
        card = load_card(model_card_name(cells["model"]))
    except SkippedRow:
        return _weights_without_card(cells)
    share = expert_share(card)
    found = Weights(weight_bytes(card, "bf16"), weight_tensors(card), float(weight_tensors(card, stacked=True)), share)
    stated = number(cells, "weight_gb", 0.0) * GB
    # A checkpoint in FP8 travels as it is; a figure that is parameters times two says no more than the card.
    return dataclasses.replace(found, bytes=stated) if 0 < stated < 0.75 * found.bytes else found


def _weights_without_card(cells: Row) -> Weights:
    name = re.sub(r"-(instruct|base|chat|thinking|2507)\b", "", cells["model"].split("/")[-1].lower())
    named = _SIZE_NAME.search(name)
    parameters = number(cells, "params_total_b", float(named.group(1)) if named else 0.0) * GB
    held = number(cells, "weight_gb", 2 * parameters / GB) * GB
    if not held:
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
    # Stacked: all experts of a layer travel as one tensor of each matrix.
    return Weights(held, shape.tensors(shape.experts), shape.tensors(1), share, estimated)


def links_of_row(gpu: str) -> Links:
    """Links of a GPU as a table calls it: of its profile, else of :data:`LINKS`; SkippedRow where it has neither."""
    name = gpu.split("/")[0].strip() or ASSUMED_GPU
    base, nvlink = LINKS.get(name.lower().split(" ")[0], ("", 0.0))
    links = links_of(load_profile(base or device_profile_name(name)))
    return replace(links, nvlink_bytes_per_s=nvlink) if nvlink else links


MEASURED = ("refit_s", "time_s")
METHODS: Sequence[tuple[Method, ...]] = lists_beside(__file__)["transfer_methods"]
"""Methods of a transfer, each before words of its row, first match first."""
FULL_EXPERTS = ("full expert", "all experts", "shard_expert_weights=false")
"""Words of a transfer that hands every GPU all experts."""
FRAMEWORKS: Mapping[str, str] = lists_beside(__file__)["transfer_frameworks"]
LAYOUT_COLUMNS = ("train_parallelism", "train_layout", "framework", "backend")
"""Columns that may name the trainer's backend."""
CHANGED_SHARE_DENSE, CHANGED_SHARE_SPARSE = 0.02, 0.00035
"""Values that a step changes: 1 to 3 % in dense models, 0.02 to 0.05 % in Qwen3-235B (verl delta_weight_sync.md)."""
MASTER_BYTES_RATIO = 2.0
"""Bytes of FP32 weights over those in BF16."""
OPTIMIZER_BYTES = 8.0
"""Optimizer state of a parameter in NeMo-RL's recipes (precision-aware)."""
OPTIMIZER_TIMED = ("nemo_rl",)
"""Frameworks whose refit timer holds the offload of the optimizer (NeMo-RL: offload_before_refit)."""
_SIZES = re.compile(r"\b(tp|pp|cp|ep|dp)\s*(\d{1,4})\b", re.IGNORECASE)
_SHARDS = re.compile(r"\bhsdp\s*\d+\s*x\s*(\d{1,4})\b", re.IGNORECASE)


def _predictor(table: Table, fitted: Fitted) -> Predict:
    def predict(row: MeasuredRow) -> Prediction:
        cells = row.cells
        if row.measured is None:
            raise SkippedRow("refit_s or time_s is not given")
        job, weights = transfer_job(cells)
        copy_at_once = job.received_bytes / job.links.nvlink_bytes_per_s
        # No method beats a single copy over NVLink: such a row holds a mistake or timed something else.
        if row.measured < copy_at_once:
            raise SkippedRow(
                f"faster than the links: {job.received_bytes / 1e9:.3g} GB to a GPU take {copy_at_once:.2g} s of NVLink"
            )
        framework, model = framework_of(cells), cells.get("model", "").split("/")[-1]
        factor = fitted.factor(transfer_groups(framework, job.method, model))
        terms = replace(TransferTerms.of(fitted.transfers, framework), factor=factor)
        about: dict[str, Any] = {
            "refit_method": job.method,
            "weight_gb": job.wire_bytes / 1e9,
            "tensors": round(job.tensors),
        }
        further = _users_spread(cells, job.method, framework)
        if further:
            about[FURTHER_SPREAD] = further
        error = math.hypot(terms.error, further)
        return Prediction.within(transfer_s(cells, job, terms), error, **about, estimated=weights.estimated)

    return predict


def _users_spread(cells: Row, method: Method, framework: str) -> float:
    """What runs of users differ by, as ``project`` has it, where no transfers of their software were fitted.

    Their mean is left out: it is that of whole hand-overs, and a row times the transfer.
    """
    known = load_user_runs() if framework == OTHER else None
    if known is None:
        return 0.0
    place, name = "colocated" if method == "cuda_ipc" else "split", cells.get("framework", "").lower()
    found = deviation_of(known, "transfer", (f"{place}, {name}", place, EVERY))
    return 0.0 if found is None else max(found.above, found.below)


def transfer_s(cells: Row, job: TransferJob, terms: TransferTerms) -> float:
    """Seconds of what a row timed: the transfer, on shared GPUs with the offload around it unless it says otherwise."""
    seconds = sum(part.seconds for part in transfer_parts(job, terms))
    if job.method == "cuda_ipc" and cells.get("timed", "") != "transfer":
        seconds += _around_s(cells, job, terms)
    return seconds * terms.factor


def _around_s(cells: Row, job: TransferJob, terms: TransferTerms) -> float:
    """Policy weights to the host, engine weights from it and the calls around; NeMo-RL's timer holds the optimizer too.

    The layout says what a GPU holds; precision-aware optimizers keep 8 bytes a parameter (NeMo-RL's recipes).
    """
    training, engine = _sizes(cells, "train"), _sizes(cells, "gen")
    copies = HostCopies(terms.values, job.links, pinned=False)
    dense = training.get("tp", 1) * training.get("pp", 1)
    experts = training.get("ep", 1) * training.get("pp", 1)
    held = job.full_bytes * ((1 - job.expert_share) / dense + job.expert_share / max(dense, experts))
    tensors = job.stacked_tensors / training.get("pp", 1) + (job.tensors - job.stacked_tensors) / max(dense, experts)
    if job.sender.fsdp:
        held, tensors = job.full_bytes * MASTER_BYTES_RATIO / job.sender.gpus, job.stacked_tensors
    seconds = copies.out_s(held, tensors) + terms.values.sleep_wake_s
    if framework_of(cells) in OPTIMIZER_TIMED:
        state = OPTIMIZER_BYTES / 2 * job.full_bytes / job.sender.gpus
        seconds += copies.out_s(state, OPTIMIZER_TENSORS * tensors / job.sender.gpus)
    return seconds + HostCopies(terms.values, job.links, pinned=True).in_s(job.wire_bytes / engine.get("tp", 1), 0)


def _measured_rows(name: str, cells: Row) -> list[MeasuredRow]:
    framework = framework_of(cells)
    try:
        about: str = method_of(cells)
    except SkippedRow:
        about = cells.get("method", "")[:40] or "unknown method"
    details = {column: cells.get(column, "") for column in ("model", "gpu", "train_gpus", "gen_gpus", "method")}
    group = f"{cells.get('framework', '')[:60] if framework == OTHER else framework}, {about}"
    return [MeasuredRow(name, group, "s", measured_value(cells, *MEASURED), cells, details)]


TRANSFERS = Comparison(_measured_rows, _predictor)
"""Measured weight transfers beside those of the cost model."""


def framework_of(cells: Row) -> str:
    """The row's framework as the fitted parameters call it; other for one that they do not know."""
    given = cells.get("framework", "").lower()
    if "verl" in given and _names_megatron(cells):
        return "verl_megatron"
    return next((name for word, name in FRAMEWORKS.items() if word in given), OTHER)


def _names_megatron(cells: Row) -> bool:
    text = " ".join(cells.get(name, "") for name in LAYOUT_COLUMNS).lower()
    return "megatron" in text or "mbridge" in text


def method_of(cells: Row) -> Method:
    """Transfer method of a row; SkippedRow where its method is not given or unheard of."""
    placement = cells.get("placement", "").lower()
    where = "host memory" if "host memory" in placement else "colocated" if placement.startswith("colocated") else ""
    given = f"{where} {cells.get('method', '').lower()}"
    for found, *words in METHODS:
        if any(word in given for word in words):
            return found
    shown = cells.get("method", "")[:60]
    raise SkippedRow(f"transfer by {shown!r} is not known" if shown else "method is not given")


def parallel_sizes(text: str) -> dict[str, int]:
    """Sizes by name in texts such as ``Megatron TP1/PP16/EP16``."""
    return {name.lower(): max(1, int(size)) for name, size in _SIZES.findall(text.replace("_", " "))}


def _sizes(cells: Row, side: str) -> dict[str, int]:
    """Parallel sizes of one side (train or gen): from its text, or from a column of each."""
    found = parallel_sizes(cells.get(f"{side}_parallelism", "") or cells.get(f"{side}_layout", ""))
    for name in ("tp", "pp", "cp", "ep"):
        if cells.get(f"{side}_{name}", ""):
            # A column is more exact than the text of the layout and wins over it.
            found[name] = whole_number(cells, f"{side}_{name}")
    return found


def transfer_job(cells: Row) -> tuple[TransferJob, Weights]:
    """The transfer of a row, and its weights. Raises SkippedRow where it leaves something essential open."""
    method = method_of(cells)
    weights, links = weights_of(cells), links_of_row(cells.get("gpu", "") or ASSUMED_GPU)
    text = " ".join(cells.get(name, "") for name in ("method", "placement", "train_parallelism", "notes")).lower()
    engine = _sizes(cells, "gen")
    train_gpus, gen_gpus = _pools(cells, method)
    # Where no size is stated, a replica fills a node of eight.
    replica = engine.get("tp", 8 if gen_gpus % 8 == 0 else gen_gpus) * engine.get("pp", 1)
    dtype = cells.get("weight_dtype", "").lower()
    narrowed, prequantised = " to " in dtype and "fp8" in dtype, "prequantised" in text
    job = TransferJob(
        method,
        weights.bytes,
        weights.bytes / 2 if narrowed and prequantised else weights.bytes,
        weights.tensors,
        weights.stacked_tensors,
        _sender(cells, text, train_gpus, weights),
        Receiver(gen_gpus, min(gen_gpus, replica), loads="receive only" not in text),
        links,
        weights.expert_share,
        CHANGED_SHARE_SPARSE if weights.expert_share else CHANGED_SHARE_DENSE,
        full_experts=any(words in text for words in FULL_EXPERTS),
        quantised=narrowed and not prequantised,
    )
    return job, weights


def _pools(cells: Row, method: Method) -> tuple[int, int]:
    """GPUs that train and that generate; where a pool is not given, what the layout needs or the other's size."""
    training = _sizes(cells, "train")
    given = {name: whole_number(cells, name) for name in ("train_gpus", "gen_gpus", "num_gpus") if cells.get(name, "")}
    if method == "cuda_ipc":
        both = given.get("num_gpus") or given.get("gen_gpus") or given.get("train_gpus")
        if both is None:
            raise SkippedRow("num_gpus is not given")
        return both, both
    total, dense = given.get("num_gpus", 0), training.get("tp", 1) * training.get("cp", 1) * training.get("dp", 1)
    layout = training.get("pp", 1) * max(dense, training.get("ep", 1))  # what it needs at least
    generation = given.get("gen_gpus") or (total - given["train_gpus"] if "train_gpus" in given else total // 2)
    if generation < 1:
        raise SkippedRow("gen_gpus is not given")
    return given.get("train_gpus") or max(generation, layout), generation


def _sender(cells: Row, text: str, gpus: int, weights: Weights) -> Sender:
    """The trainer's side. verl trains with FSDP where a row does not name Megatron."""
    words, sizes = " ".join(cells.get(name, "") for name in LAYOUT_COLUMNS).lower(), _sizes(cells, "train")
    fsdp = not _names_megatron(cells) and ("fsdp" in words or framework_of(cells).startswith("verl"))
    shards = _SHARDS.search(words)
    dense = sizes.get("tp", 1) * sizes.get("pp", 1)
    copy = max(dense, sizes.get("ep", 1) * sizes.get("pp", 1))
    if fsdp:
        copy = int(shards.group(1)) * sizes.get("tp", 1) if shards else gpus
    offloaded = bool(re.search(r"offload on|cpu offload", text))
    return Sender(
        gpus,
        min(gpus, copy),
        sizes.get("ep", 1),
        sizes.get("pp", 1),
        fsdp,
        full_state="fsdp1" in words,
        onload_bytes=MASTER_BYTES_RATIO * weights.bytes / gpus if offloaded else 0.0,
        in_host_memory="host memory" in text,
    )


def each_once(rows: Sequence[ComparedRow]) -> Iterator[ComparedRow]:
    """Rows of which those are skipped whose measurement an earlier row holds, or any row objects to by its flag."""
    objected = {_measurement(row) for row in rows if (row.skipped or "").startswith(FLAGGED)}
    known: set[tuple[object, ...]] = set()
    for row in rows:
        key = _measurement(row)
        reason = "the flag of another row of the same measurement" if key in objected else None
        if reason is None and key in known:
            reason = "the same measurement as an earlier row"
        known.add(key)
        if row.predicted is None or reason is None:
            yield row
        else:
            about = {name: getattr(row, name) for name in ("id", "group", "unit", "measured", "details")}
            yield ComparedRow(**about, skipped=reason)


def _measurement(row: ComparedRow) -> tuple[object, ...]:
    """Key that rows of a measurement share: framework and method, model, engine GPUs, seconds within about 1 %."""
    model = str(row.details.get("model", "")).split("/")[-1].lower()
    return row.group, model, row.details.get("gen_gpus"), f"{math.log(row.measured or 1.0):.2f}"
