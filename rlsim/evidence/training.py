"""Measured training steps beside the trainer alone: forward, backward and optimizer of one global batch."""

import math
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rlsim.costs.interface import PhaseCost
from rlsim.costs.links import node_link
from rlsim.costs.operators.collectives import Network
from rlsim.costs.operators.device import device_of
from rlsim.costs.overheads import TrainingOverheads, training_overheads
from rlsim.costs.trainer.layout import TrainedBatch
from rlsim.costs.trainer.training import TrainerInputs, train_cost
from rlsim.errors import RlsimError
from rlsim.evidence.rows import (
    FURTHER_SPREAD,
    Comparison,
    MeasuredRow,
    Predict,
    Prediction,
    constant_workload,
    device_profile_name,
    model_card_name,
    row_scenario,
    row_values,
)
from rlsim.evidence.tables import Row, SkippedRow, Table, length_tokens, measured_value, number, parallel, whole_number
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import load_card
from rlsim.parameters.sets import Fitted, stack_of_release
from rlsim.results.validation import Detail
from rlsim.schema.base import changed
from rlsim.schema.engine_parameters import version_order
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Stack
from rlsim.tables.profile import load_profile

MEASURED = ("step_time_s", "implied_step_time_s")
"""Columns with the time of a step, the one that was measured first."""
KINDS = tuple(lists_beside(__file__)["training_kinds"])
MOST_SAMPLES, MOST_TOKENS = 200_000, 1_048_576
"""Sequences of a batch and tokens of a sequence at most."""
FRAMEWORKS: dict[str, str] = lists_beside(__file__)["trainers"]
_LORA_RANK = re.compile(r"\br(\d+)\b")
DEFAULT_LORA_RANK = 16
"""Rank of adapters where a row states none: that of the rows that do."""


_RELEASE = re.compile(r"\d+\.\d+(\.\d+)?")
_SERIES = re.compile(r"(\d+\.\d+)(\.\d+)*")
_UNKNOWN = ("", "unknown")
RECOMPUTED = (("selective", "selective"), ("full", "full"), ("recompute", "full"), ("offload", "full"))
"""Which activations a row recomputes, by how it begins; lists of single modules, small shares, count as none."""
_EFA: dict[str, str] = lists_beside(__file__)["efa"]
_RECIPES = lists_beside(__file__, "recipes.yaml")
ATTENTION = {"flash_attention_2": True, "flash_attention_3": False}
"""Whether attention runs by FlashAttention-2, by what notes say."""
LOGITS_CHUNK_TOKENS = 8192
"""Tokens of a chunk of prime-rl's head."""
REMARK = (
    "recomputation, graphs, dispatcher, overlap and heads for multi-token prediction that a row does not state are "
    "those of the recipe (rlsim/evidence/recipes.yaml), else of the stack, and nothing is recomputed"
)


@dataclass(frozen=True)
class TrainerRow:
    """The trainer of a measured step: its scenario, its batch, and framework and release as the table calls them."""

    scenario: Scenario
    batch: TrainedBatch
    framework: str
    release: str | None

    def overheads(self, fitted: Fitted) -> TrainingOverheads:
        """Overheads of the framework under fitted values."""
        return training_overheads(self.scenario, fitted)

    def network(self, slower_exchange: float = 1.0) -> Network:
        """Network between nodes; slower_exchange: see :meth:`NodeLink.of_gpu`."""
        return node_link(self.scenario).of_gpu(self.scenario.hardware, slower_exchange)

    def seconds(self, fitted: Fitted, network: Network | None = None) -> float:
        """Seconds of the step under fitted values."""
        return self.cost(fitted, network).seconds

    def network_spread(self, fitted: Fitted) -> float:
        """What exchanges of experts over a fitted network add to the standard deviation of the logarithm of those."""
        spread = node_link(self.scenario).exchange_spread
        if not spread:
            return 0.0
        return math.log(self.seconds(fitted, self.network(math.exp(spread))) / self.seconds(fitted))

    def cost(self, fitted: Fitted, network: Network | None = None) -> PhaseCost:
        """The step under fitted values, part by part; network: in place of the row's."""
        scenario = self.scenario
        device = device_of(scenario.hardware, scenario.engine.name, network=network or self.network())
        inputs = TrainerInputs(
            scenario.model, device, scenario.trainer, scenario.cluster.num_gpus, self.overheads(fitted),
            scenario.workload.max_sequence_tokens, logprob_passes=0,
        )  # fmt: skip
        return train_cost(inputs, self.batch)


def _predictor(table: Table, fitted: Fitted) -> Predict:
    def predict(row: MeasuredRow) -> Prediction:
        if row.measured is None:
            raise SkippedRow(f"{' and '.join(MEASURED)} are not given")
        measured_itself = measured_value(row.cells, MEASURED[0]) is not None
        cut = "step time measured" if measured_itself else "step time from the throughput"
        trained = trainer_row(row.cells)
        further = trained.network_spread(fitted)
        error, details = math.hypot(fitted.training.error, further), {FURTHER_SPREAD: further} if further else {}
        return Prediction.within(trained.seconds(fitted), error, (cut, *_cuts(row.cells)), **details)

    return predict


def _measured_rows(name: str, cells: Row) -> list[MeasuredRow]:
    """Scored by framework and release, family of the model, device and precision, as far as a row gives them."""
    parts = _parts(cells)
    about: dict[str, Detail] = {column: cells.get(column, "") for column in ("model", "gpu", "precision", "release")}
    about |= {"framework": _framework(cells), "series": _series(cells), "family": parts["family"]}
    group = ", ".join(part for part in parts.values() if part)
    return [MeasuredRow(name, group, "s", measured_value(cells, *MEASURED), cells, about)]


TRAINING = Comparison(_measured_rows, _predictor, lambda table, rows: {"remarks": (REMARK,)})
"""Measured training steps beside the trainer alone."""


def _parts(cells: Row) -> dict[str, str]:
    """Framework with release, family, device and precision of a row by name; empty where it does not say."""
    return {
        "release": " ".join(part for part in (_framework(cells), _series(cells)) if part),
        "family": _card_family(cells.get("model", "")),
        "device": cells.get("gpu", "").replace(" NVL72", "").strip(),
        "precision": _precision(cells),
    }


def _cuts(cells: Row) -> tuple[str, ...]:
    """Further sets that a row is scored in: each part of its group alone, and release with family and interconnect."""
    parts = _parts(cells)
    cuts = [f"{name}: {value}" for name, value in parts.items() if value]
    # GB200 and GB300 are sold in racks of 72 on one NVLink domain; the other devices have 8 in a node.
    place = "NVL72 racks" if parts["device"].startswith("GB") else "8-GPU nodes"
    if parts["family"] and parts["device"] and parts["release"]:
        cuts.append(f"{parts['family']} on {place}, {parts['release']}")
    return tuple(cuts)


def _framework(cells: Row) -> str:
    return re.sub(r"\s*\(.*\)$", "", cells.get("framework", "").strip())


def _series(cells: Row) -> str:
    """A release without its corrections and container (26.02 of NeMo 26.02.01); other texts as they are."""
    given = cells.get("release", "").strip()
    found = _SERIES.search(given)
    return found.group(1) if found else "" if given.lower() in _UNKNOWN else given[:20]


@lru_cache(maxsize=256)
def _card_family(model: str) -> str:
    try:
        return "dense" if load_card(model_card_name(model)).moe is None else "MoE"
    except (SkippedRow, RlsimError):
        return ""


def _precision(cells: Row) -> str:
    """BF16, FP8 (one scale for a tensor, row or block of at least 128), MXFP8 or NVFP4; other formats as given."""
    given = cells.get("precision", "").strip().upper()
    if re.match(r"MXFP8|FP8[-_]MX", given):
        return "MXFP8"
    return next((name for name in ("BF16", "FP8", "NVFP4") if given.startswith(name)), given[:20])


def trainer_row(cells: Row) -> TrainerRow:
    """The trainer of a row. Raises SkippedRow where the row leaves something essential open or unsupported."""
    kind = cells.get("training_kind", "") or "pretrain"
    if not kind.startswith(KINDS):
        raise SkippedRow(f"training_kind {kind[:40]!r} is not simulated")
    if cells.get("packed", "") in ("1", "true") and not kind.startswith("sft"):
        raise SkippedRow("lengths of packed sequences are not given")
    samples, tokens = whole_number(cells, "gbs"), length_tokens(cells, "seq_len")
    if samples > MOST_SAMPLES or tokens > MOST_TOKENS:
        raise SkippedRow(f"more than {MOST_SAMPLES:,} sequences or {MOST_TOKENS:,} tokens")
    model = model_card_name(cells["model"])
    card = load_card(model)
    # Dense models have a default of 1; for experts the size decides what a GPU multiplies and exchanges.
    if card.moe is not None and not cells.get("ep", "") and whole_number(cells, "num_gpus") > 1:
        raise SkippedRow("expert parallel size of a mixture of experts is not given")
    device, gpus = device_profile_name(cells["gpu"]), whole_number(cells, "num_gpus")
    name = cells.get("framework", "").lower()
    framework = next((known for word, known in FRAMEWORKS.items() if word in name), "megatron_bridge")
    layers = whole_number(cells, "layers_override", card.num_layers)  # a model may be cut to some of its layers
    found = _RELEASE.search(cells.get("release", ""))
    release = found.group() if found else None
    trainer = _trainer(cells, kind)
    recipe = recipe_of(framework, release, (model, device.partition("_")[0], str(trainer["precision"])))
    if "w/o mtp" in cells["model"].lower():
        recipe |= {"mtp_layers": 0}
    if not any(word in cells.get("notes", "").lower() for word in _RECIPES["real_routing"]):
        # Benchmarks force even routing unless their notes say that it is real (recipes.yaml).
        recipe |= {"expert_imbalance": 1.0}
    # A row wins over its recipe, but for graphs: its column holds what a recipe writes first and overwrites later.
    trainer = {name: value for name, value in trainer.items() if value is not None or name not in recipe}
    trainer = {"cuda_graphs": _graphs(cells.get("cuda_graphs", ""))} | recipe | trainer
    document = {
        "name": "trainer",
        "model": row_values(ModelCard, {**dict(card), "num_layers": layers}),
        "hardware": load_profile(device),
        "stack": _stack(framework, release),
        "cluster": {"num_gpus": gpus, "fabric": _fabric(cells, device)},
        "workload": constant_workload(samples, 1, 1, tokens),
        "trainer": trainer,
    }
    # Pretraining packs or cuts to equal lengths: every sequence has seq_len tokens.
    batch = TrainedBatch.of(np.full(samples, float(tokens)), samples)
    return TrainerRow(row_scenario(document), batch, framework, release)


def _fabric(cells: Row, device: str) -> str | None:
    """Network between nodes of a row: its column fabric, or EFA where its framework or notes name it."""
    if cells.get("fabric"):
        return cells["fabric"]
    named = re.search(r"\bEFA\b", f"{cells.get('framework', '')} {cells.get('notes', '')}")
    return _EFA.get(device.partition("_")[0]) if named else None


def _trainer(cells: Row, kind: str) -> dict[str, object]:
    """The section ``trainer`` of a row's scenario."""
    name = cells.get("framework", "").lower()
    sharded = bool(number(cells, "fsdp", 0.0)) or "fsdp" in name or "torchtitan" in name
    rank, stated = _LORA_RANK.search(kind), cells.get("recompute", "").strip().lower()
    adapters = "lora" in kind or "peft" in kind
    recompute = next((way for begin, way in RECOMPUTED if stated.startswith(begin)), "none")
    # prime-rl runs the loss of RL in chunks (559b4477, fused_lm_head_token_chunk_size), that of SFT whole.
    chunked = LOGITS_CHUNK_TOKENS if "prime-rl" in name and kind.startswith("rl") else None
    return ({"recompute": recompute} if stated else {}) | {
        "logits_chunk_tokens": chunked,
        "activations_on_host": stated.startswith("offload"),
        "micro_batch_samples": whole_number(cells, "mbs", 1),
        "backend": "fsdp" if sharded else "megatron",
        **parallel(cells, "", "tensor", "pipeline", "context", "expert"),
        "precision": training_precision(cells["precision"]),
        "optimizer": "muon" if cells.get("optimizer", "").lower() == "muon" else "adam",
        "virtual_stages": whole_number(cells, "vp", 1),
        "local_batch_samples": _local_batch_samples(cells) if "automodel" in name else None,
        "lora_rank": (int(rank.group(1)) if rank else DEFAULT_LORA_RANK) if adapters else None,
        "token_drop": "tokendrop" in cells["model"].lower() or None,
        "flash_attention_2": next((old for name, old in ATTENTION.items() if name in cells.get("notes", "")), None),
        "moe_dispatcher": cells.get("moe_dispatcher", "").lower() or None,
        # What the tables time has no passes for log-probs, and its sequences are full.
        "sequence_packing": False,
        "policy_logprobs": False,
        "reference_logprobs": False,
    }


def _local_batch_samples(cells: Row) -> int | None:
    """Samples of a rank between two gradient accumulations, for which AutoModel's pipelines run once."""
    model_gpus = math.prod(whole_number(cells, size, 1) for size in ("tp", "pp", "cp"))
    batches = whole_number(cells, "num_gpus") // model_gpus * whole_number(cells, "grad_accum", 1)
    samples, rest = divmod(whole_number(cells, "gbs"), batches) if batches else (0, 1)
    return None if rest or samples % whole_number(cells, "mbs", 1) else samples


def _graphs(scopes: str) -> str | None:
    """Which CUDA graphs a row states (key ``cuda_graphs``); None for an empty list of scopes."""
    if "full_iteration" in scopes and not scopes.startswith("none"):
        return "iteration"
    return "modules" if scopes.startswith("transformer_engine") or "moe_router" in scopes else None


def training_precision(text: str) -> str:
    """Precision of a trainer's products: BF16, NVFP4, or FP8 with whatever scaling; SkippedRow for others."""
    given = text.strip().lower()
    if given.startswith(("bf16", "bfloat16")):
        return "bf16"
    if given.startswith(("fp8", "mxfp8")):
        return "fp8"
    if given.startswith("nvfp4"):
        return "nvfp4"
    raise SkippedRow(f"training precision {given[:40]!r} is not simulated" if given else "precision is not given")


def recipe_of(framework: str, release: str | None, run: tuple[str, str, str]) -> dict[str, object]:
    """Keys of ``trainer`` that the newest recipe of ``run`` sets that is not newer than ``release``; none without one.

    run: names of model card and device, and precision.

    >>> recipe_of("megatron_bridge", "26.04.01", ("deepseek-v3", "b200", "fp8"))["moe_dispatcher"]
    'deepep'
    """
    model, device, precision = run
    trained: dict[str, object] = {"mtp_layers": _RECIPES["mtp_layers"].get(framework, {}).get(model, 0)}
    models = _RECIPES["recipes"].get(framework, {})
    devices = models.get(model, models.get("any", {}))
    entries = devices.get(device, devices.get("any", {}))
    known = [(version_order(name.split()[0]), name) for name in entries if name.split()[1:] in ([], [precision])]
    past = [entry for entry in known if entry[0] <= version_order(release or "")]
    if not past:
        return trained
    words = entries[max(past)[1]].split()
    named = {key: on for word in words for key, on in _RECIPES["words"][word].items()}
    return {**trained, **_RECIPES["unnamed"], **named}


def _stack(framework: str, release: str | None) -> Stack:
    """The newest stack of a framework that is not newer than a release, with that release."""
    found = stack_of_release(framework, release)
    if found is None:
        raise SkippedRow(f"no stack of {framework} is known")
    return found if release is None else changed(found, release=release)
