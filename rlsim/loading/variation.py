"""Words that stand for several scenario keys: ``k``, ``lag`` and ``generation_share``, wherever overrides are taken.

What is stated beside a word wins over what the word derives, in any order; where both say the same thing differently
they are refused. A split cluster that changes its size without a new split keeps its share.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import lists_beside
from rlsim.loading.overrides import Setting as Given
from rlsim.schema.loop import ASYNCHRONOUS_KEYS, LIMITS, MOST_GPUS
from rlsim.schema.messages import is_key, nearest_key
from rlsim.schema.scenario import Scenario

Setting = bool | int | float | str | list[Any] | dict[str, Any] | None
Overrides = dict[str, Setting]
"""Values by dotted scenario key, as ``--set`` gives them, or by one of the words."""

_TABLE: Mapping[str, Mapping[str, Any]] = lists_beside(__file__, "words.yaml")
WORDS: Mapping[str, str] = {word: entry["means"] for word, entry in _TABLE.items()}
"""What each word means."""
SIZE = "cluster.num_gpus"
DEFAULT_GENERATION_SHARE = 0.5
"""Share of generating GPUs where a synchronous scenario on shared GPUs becomes asynchronous without a split."""


def check_key(key: str, where: str) -> None:
    """Raise InputError where ``key`` is neither a scenario key nor a word."""
    if key in WORDS or is_key(key, Scenario):
        return
    near = nearest_key(key, Scenario)
    hint = f"did you mean '{near}'?" if near else f"beside scenario keys there are {', '.join(WORDS)}"
    raise InputError(f"{where}: unknown key '{shortened(key)}'; {hint}")


def has_words(given: Sequence[Given]) -> bool:
    """Whether settings hold a word, or a size of the cluster that may move its split."""
    return any(setting.key in WORDS or setting.key == SIZE for setting in given)


def without_words(scenario: Scenario, given: Sequence[Given], before: str = "") -> list[Given]:
    """Settings that put ``given`` into effect on ``scenario``, with no word left.

    before: what messages begin with. Raises InputError.
    """
    written = {setting.key: setting.text for setting in given}
    values: Overrides = {setting.key: setting.value for setting in given}
    stated = [setting for setting in given if setting.key not in WORDS]
    derived: list[Given] = []
    try:
        words = _derived(scenario, values)
    except InputError as error:
        raise InputError(f"{before}{error}") from None
    for word, found in words:
        for key in _TABLE.get(word, {}).get("says", ()):
            if word in values and key in values and not _agree(key, values[key], found):
                raise InputError(f"{before}{written[word]} and {written[key]} contradict each other; give one of them")
        derived += [Given(key, value, written[word]) for key, value in found.items()]
    return [*derived, *stated]


def _agree(key: str, value: Setting, found: Overrides) -> bool:
    """Whether a stated value says what a word derives; one that switches drafts off leaves their method open."""
    # k=5 says that something drafts, not what.
    if key == "speculation.method":
        return (value == "none") == (found.get(key) == "none")
    return key not in found or found[key] == value


def _derived(scenario: Scenario, values: Overrides) -> list[tuple[str, Overrides]]:
    """What each word derives, by the word."""
    out: list[tuple[str, Overrides]] = []
    if "k" in values:
        out.append(("k", _drafting(scenario, values)))
    if "lag" in values:
        out.append(("lag", _lagging(scenario, _whole_number(values, "lag"))))
    split = _splitting(scenario, values)
    if split:
        out.append((next(word for word in ("generation_share", "lag", SIZE) if word in values), split))
    return out


def _whole_number(overrides: Overrides, key: str) -> int:
    value = overrides[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{key}={value}: must be a whole number")
    if value < 0:
        raise InputError(f"{key}={value}: must be at least 0")
    return value


def _drafting(scenario: Scenario, values: Overrides) -> Overrides:
    k = _whole_number(values, "k")
    if k == 0:
        return {"speculation.method": "none", "speculation.draft_length": 0}
    if not scenario.speculation.active and "speculation.method" not in values:
        raise InputError("k needs a scenario with speculation (method and acceptance), or give speculation.* keys")
    return {"speculation.draft_length": k}


def _lagging(scenario: Scenario, lag: int) -> Overrides:
    if lag == 0:
        # Keys of lagged loops go back to their defaults, where they are stated.
        fields = type(scenario.loop).model_fields
        stated = (key for key in ASYNCHRONOUS_KEYS if getattr(scenario.loop, key) != fields[key].default)
        back = {f"loop.{key}": fields[key].default for key in stated}
        if scenario.loop.policy_lag is not None:
            back["loop.policy_lag"] = 0
        # Back on shared GPUs, where a method between pools is refused (schema/scenario.py).
        shared = {"cluster.generation_gpus": None, "cluster.training_gpus": None}
        if not scenario.cluster.colocated and scenario.loop.refit_method != "auto":
            back["loop.refit_method"] = "auto"
        return {"loop.mode": "sync", **back, **shared}
    # cuda_ipc hands weights over on shared GPUs, which a lagged loop has split.
    refit = {"loop.refit_method": "auto"} if scenario.loop.refit_method == "cuda_ipc" else {}
    same = scenario.loop.mode == "async" and scenario.loop.lag == lag
    return {
        # Steps that were stated for another lag fit neither the start-up nor the cycle of this one.
        **({} if same else {"simulation.warmup_steps": None, "simulation.steps": None}),
        "loop.mode": "async",
        "loop.policy_lag": lag,
        **{f"loop.{key}": None for key in LIMITS if getattr(scenario.loop, key) is not None},
        **refit,
    }


def _splitting(scenario: Scenario, overrides: Overrides) -> Overrides:
    """The split of the pools, where it follows from a share."""
    given = {"cluster.generation_gpus", "cluster.training_gpus"} & overrides.keys()
    if "generation_share" in overrides and given:
        raise InputError(f"generation_share and {min(given)} contradict each other; give one of them")
    if given or overrides.get("lag") == 0:
        return {}
    cluster = scenario.cluster
    pooled = cluster.policy_gpus
    own = DEFAULT_GENERATION_SHARE if cluster.colocated else cluster.generation / pooled
    wanted = "generation_share" in overrides or (
        "lag" in overrides if cluster.colocated else bool({"cluster.num_gpus", "lag"} & overrides.keys())
    )
    if not wanted:
        return {}
    share = overrides.get("generation_share", own)
    if not isinstance(share, int | float):
        raise InputError(f"generation_share={share}: must be a number between 0 and 1")
    if not 0 < share < 1:
        raise InputError(f"generation_share={share}: must lie between 0 and 1")
    apart = sum(_size(scenario, overrides, f"cluster.{name}_gpus") for name in ("reference", "pool"))
    gpus = max(1, _size(scenario, overrides, SIZE) - apart)
    generation = split_gpus(gpus, share, *(_group_gpus(scenario, overrides, part) for part in ("engine", "trainer")))
    return {"cluster.generation_gpus": generation, "cluster.training_gpus": gpus - generation}


def pool_unit(scenario: Scenario, gpus: int) -> int:
    """GPUs that pools which divide so many have multiples of: nodes of stacks that divide none, else 1."""
    node = int(scenario.hardware.gpus_per_node)
    whole = scenario.stack is not None and scenario.stack.whole_nodes and gpus > node and gpus % node == 0
    return node if whole else 1


def even_batches(scenario: Scenario, training_gpus: int, shard: int) -> bool:
    """Whether the data-parallel ranks of so many GPUs, ``shard`` for each, have equal parts of an update, or the stack
    needs none."""
    samples = scenario.trainer.global_batch_samples or scenario.workload.samples_per_step
    stack = scenario.stack
    return stack is None or not stack.even_batches or samples % max(1, training_gpus // shard) == 0


def _size(scenario: Scenario, overrides: Overrides, key: str) -> int:
    section, _, name = key.partition(".")
    value = overrides.get(key, getattr(getattr(scenario, section), name))
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{key}: must be a whole number, got '{value}'")
    return value


def _group_gpus(scenario: Scenario, overrides: Overrides, section: str) -> int:
    """GPUs of a replica of the engine, or of a model-parallel shard of the trainer."""
    sizes = ("tensor", "pipeline") + (("context",) if section == "trainer" else ())
    return math.prod(_size(scenario, overrides, f"{section}.{size}_parallel") for size in sizes)


def split_gpus(num_gpus: int, share: float, replica_gpus: int, shard_gpus: int) -> int:
    """Generating GPUs nearest to ``share`` of ``num_gpus`` that replicas fill and that leave whole training shards.

    Where nothing fits both, the nearest number of whole replicas: validation then names what does not divide.
    """
    num_gpus = min(num_gpus, MOST_GPUS)  # validation refuses more
    wanted = share * num_gpus
    candidates = [n for n in range(replica_gpus, num_gpus, replica_gpus) if (num_gpus - n) % shard_gpus == 0]
    if not candidates:
        return min(max(1, round(wanted / replica_gpus)) * replica_gpus, max(1, num_gpus - 1))
    # Of two equally near the smaller, so that the answer does not hang on the order of the candidates.
    return min(candidates, key=lambda n: (abs(n - wanted), n))


def check_rollout(scenario: Scenario, what: str) -> None:
    """Raise InputError where ``what``, which is of a rollout and its engines, is asked of a loop without one."""
    if scenario.loop.supervised:
        raise InputError(
            f"{scenario.name}: loop.supervised generates nothing, and {what} needs a rollout; rlsim project, run, "
            "sweep, compare and improve answer for the update alone"
        )


def check_trained(scenario: Scenario, what: str) -> None:
    """Raise InputError where ``what``, which is of a rollout and a trainer, is asked of a loop without either."""
    check_rollout(scenario, what)
    if scenario.loop.rollouts_alone:
        raise InputError(
            f"{scenario.name}: loop.rollouts_alone trains nothing, and {what} needs a trainer; rlsim project, run, "
            "sweep, compare, k and improve answer for the generation alone"
        )
