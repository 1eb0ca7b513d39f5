"""What no configuration says: hardware, lengths, acceptance. Stated by options, else assumed and told so."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import card_by_shape, tower_of
from rlsim.schema.workload import MAX_TURNS
from rlsim.tables.profile import profile_called

PROMPT_TOKENS = 107
"""OpenMathInstruct-2 with its template, the prompts of NeMo-RL's performance recipes (schema/workload.py)."""
LONG_PROMPTS = 2048
"""Cap above which prompts are taken for longer than mathematical problems, in tokens. Published runs with a cap up to
it have means of 82 to 571 (calibration/published/wild/steps.csv: DAS, GSM8K, ReTool, rLLM), with a larger one of 1,800
and more (DeepSWE)."""
RESPONSE_SHARE = 0.5
"""Mean response over its cap, where nothing is told: the median of the 15 single-turn runs with both in
calibration/published (rl_steps.csv, wild/steps.csv) is 0.52, of 0.25 to 1, their standard deviation of the logarithm
0.43."""
SAMPLE_SHARE = 10**-0.5
"""Mean sample of a data set over the cap of its samples, where nothing is told: of a tenth to all of it every share is
as likely in the logarithm, whose mean this is and whose standard deviation assumed.yaml has (ln 10 / sqrt 12).
Assumption."""
RESPONSE_SIGMA = 0.7
"""Spread of log length, as in the scenarios that come with rlsim. Assumption."""
FIRST_ACCEPTANCE = {"ngram": 0.5, "suffix": 0.5}
LEARNED_ACCEPTANCE = 0.75
"""Conditional acceptance of the first drafted token: a learned drafter gives 2.7 tokens at k = 3 with it, between the
measured 2.5 and 3.3 of EAGLE-3 heads (calibration/published/speculation.csv). Assumption."""
LARGER = {"h100_sxm": ("h200_sxm", "b300_sxm"), "b200_sxm": ("b300_sxm",), "gb200_nvl72": ("gb300_nvl72",)}
"""Devices of the same nodes with more memory, by the one that is assumed where none is named."""
MEAN_TURNS = 10.0
"""Mean turns under a higher limit, else half of it. Assumption."""
USABLE_SHARE = 0.6
"""Prompt groups with unequal rewards under dynamic sampling. Assumption."""


ASSUMED: Mapping[str, Mapping[str, Any]] = lists_beside(__file__, "assumed.yaml")
"""Assumptions by name: a sentence, the scenario keys that it is of, and ``log_spread`` where the first is guessed."""


@dataclass(frozen=True)
class Asked:
    """Options of an import; None: assume.

    hardware: profile; model: card or config.json; draft_model, teacher_model: the same of an external drafter and of
    the teacher of a distillation. teacher_gpus: of its server. Lengths in tokens.
    """

    hardware: str | None = None
    model: str | None = None
    draft_model: str | None = None
    mean_prompt_tokens: int | None = None
    mean_response_tokens: float | None = None
    response_log_sigma: float | None = None
    response_cut_share: float | None = None
    acceptance_length: float | None = None
    usable_group_share: float | None = None
    mean_turns: float | None = None
    observation_tokens: int | None = None
    environment_s: float | None = None
    teacher_model: str | None = None
    teacher_gpus: int | None = None
    smaller_device: str | None = None
    """``hardware`` is not the user's word: it was taken because this device is too small for the layout."""
    refuse_idle: bool = False
    """An option that acts on nothing of the configuration is an error, as of a person who gives it for this one."""


SERVED = "served"
"""Of a pool of the facts: that it is a server of which neither GPUs nor layout are stated."""
UNPOOLED = ("cluster.num_gpus", "cluster.pool_gpus")
"""Keys of an assumption on GPUs that are left out where no pools are made of their models."""


@dataclass(frozen=True)
class Facts:
    """What a framework's configuration says beside its rows.

    gpus_per_node: 4 suggests a GB200 tray, more an HGX node. of_workers: it is of a group of workers, which
    may take a part of one node. prompt_cap, response_cap: tokens. model: name, and the key
    that holds it. turns, least_turns: most and fewest turns. cap_of_turn: response_cap bounds each of them. pools:
    models beside the policy as records of scenario.pools, their model being the name of a checkpoint, with SERVED where
    it is behind an address of which nobody says how many GPUs it has. drafter: name of
    an external draft model. device: the one that the launcher names. supervised: samples are of a data set, which is
    packed into rows of the cap where it is filled. dynamic: groups with equal rewards are thrown away
    and generated again. lacking: parts of the run that the scenario does not hold and that make the step longer.
    settings: further scenario keys.
    """

    gpus_per_node: int
    prompt_cap: int
    response_cap: int
    model: str = ""
    model_key: str = ""
    turns: int = 1
    least_turns: int = 1
    cap_of_turn: bool = False
    of_workers: bool = False
    pools: tuple[Mapping[str, Any], ...] = ()
    drafter: str = ""
    supervised: bool = False
    filled: bool = False
    dynamic: bool = False
    device: str = ""
    lacking: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass
class Draft:
    """A scenario in the making: dotted keys, and what was assumed for which of them."""

    keys: dict[str, Any]
    assumptions: list[dict[str, Any]]

    def assume(self, name: str, **values: float | str) -> None:
        """Add the assumption ``name`` of ASSUMED with ``values`` in its text; log_spread takes the place of its own."""
        found = ASSUMED[name]
        spread = {"log_spread": values["log_spread"]} if "log_spread" in values else {}
        self.assumptions.append({**found, **spread, "text": found["text"].format(**values), "keys": [*found["keys"]]})


def complete(draft: Draft, facts: Facts, asked: Asked, where: str) -> None:
    """Put into ``draft`` what the configuration does not say. Raises InputError where the model has no card, or where
    an option would be without effect."""
    _check_effect(draft, facts, asked, where)
    draft.keys["model"] = asked.model or _card(draft, facts, where)
    draft.keys.update(facts.settings)
    _hardware(draft, facts, asked, where)
    _lengths(draft, facts, asked)
    _turns(draft, facts, asked)
    _pools(draft, facts, asked)
    _drafting(draft, facts, asked, where)
    if facts.dynamic and draft.keys.get("loop.mode") != "async":
        tries = draft.keys.get("workload.max_rollouts_per_step", 10)
        # What is below 1 is refused with its key where the scenario is loaded.
        share = max(USABLE_SHARE, 1 / max(1, draft.keys.get("workload.generated_batch_factor", 1.0) * tries))
        draft.keys["workload.usable_group_share"] = asked.usable_group_share or min(1.0, share)
        if asked.usable_group_share is None:
            draft.assume("usable", share=share)


def _check_effect(draft: Draft, facts: Facts, asked: Asked, where: str) -> None:
    """Raise InputError for an option that acts on nothing of the configuration."""
    drafting = bool(draft.keys.get("speculation.method")) and bool(draft.keys.get("speculation.draft_length"))
    agent = facts.turns > 1 or (asked.mean_turns or 1) > 1
    teachers = [pool for pool in facts.pools if pool["role"] == "teacher"]
    for option, given, acts, instead in (
        ("--observation-tokens", asked.observation_tokens, agent, "an agent; give --mean-turns beside it"),
        ("--environment-s", asked.environment_s, agent, "an agent; give --mean-turns beside it"),
        ("--response-cut-share", asked.response_cut_share, asked.mean_response_tokens is not None,
         "a mean that logs give; give --mean-response-tokens beside it"),
        ("--teacher-model", asked.teacher_model, bool(teachers), "a distillation, which it is not"),
        ("--teacher-gpus", asked.teacher_gpus, any(SERVED in pool for pool in teachers),
         "a teacher behind a server that the configuration does not start"),
        ("--acceptance-length", asked.acceptance_length, drafting, "speculative decoding, which it does not use"),
        ("--draft-model", asked.draft_model, draft.keys.get("speculation.method") == "draft_model",
         "a draft model, which it does not use"),
        ("--usable-group-share", asked.usable_group_share, facts.dynamic and draft.keys.get("loop.mode") != "async",
         "synchronous dynamic sampling, which it does not use"),
    ):  # fmt: skip
        if asked.refuse_idle and given is not None and not acts:
            raise InputError(f"{where}: {option} is without effect on this configuration; it is of {instead}")


def _card(draft: Draft, facts: Facts, where: str) -> str:
    found = card_by_shape(facts.model) or _card_of_placeholder(facts.model, where)
    if found is None:
        unset = facts.model in ("", "???") or (facts.model.startswith("$") and "/" not in facts.model)
        raise InputError(
            f"{where}: {facts.model_key}: '{shortened(facts.model)}' "
            + ("names no model" if unset else "has no model card")
            + "; give --model with the name of a card (rlsim models list) or the path of its config.json, which holds "
            "hidden_size, num_hidden_layers, num_attention_heads, intermediate_size and vocab_size"
        )
    card, how = found
    if how != "name" or card_by_shape(facts.model) is None:
        draft.assume("card", checkpoint=shortened(facts.model.rstrip("/").split("/")[-1]), card=card)
    # A card is of the text part: by its own name a model has its vision tower too.
    return card if tower_of(facts.model) is None else facts.model.rstrip("/").split("/")[-1]


def _card_of_placeholder(model: str, where: str) -> tuple[str, str] | None:
    """The card that the name of a file says where its configuration holds a placeholder for the path of the model."""
    if "/path/to" not in model and " " not in model.strip():
        return None
    words = Path(where).stem.lower().split("-")
    spans = [(i, j) for i in range(len(words)) for j in range(len(words), i, -1)]
    return next(
        (found for i, j in spans if (found := card_by_shape("-".join(words[i:j]))) and found[1] == "name"), None
    )


def _hardware(draft: Draft, facts: Facts, asked: Asked, where: str) -> None:
    """The device: as asked, as the file's name says, as the size of its nodes and its precisions suggest, or, where
    this one was found too small, the least that holds the layout."""
    if asked.hardware is not None:
        draft.keys["hardware"] = asked.hardware
        if asked.smaller_device is not None:
            gpus = 4 if asked.smaller_device.startswith("gb") else 8
            draft.assume("larger", hardware=asked.hardware, smaller=asked.smaller_device, gpus=gpus)
        return
    # Names of devices have several words (rtx 4090, h100 pcie): each word of the path may be the first of one.
    words = re.split(r"[^a-z0-9]+", where.lower())
    names = [facts.device.lower(), *(" ".join(words[at:]) for at in range(len(words)))]
    named = next(filter(None, (profile_called(name) for name in names if name)), None)
    blackwell = "nvfp4" in (draft.keys.get("engine.weight_precision"), draft.keys.get("trainer.precision"))
    trays = facts.gpus_per_node == 4 and not (facts.of_workers and draft.keys["cluster.num_gpus"] <= 4)
    usual = "gb200_nvl72" if trays else "b200_sxm" if blackwell else "h100_sxm"
    draft.keys["hardware"] = named or usual
    if "npu" in words or "ascend" in words:
        draft.assume("npu", hardware=draft.keys["hardware"])
    elif named is None:
        why = "hardware" if trays or facts.gpus_per_node >= 8 else "part of a node"
        draft.assume(why, hardware=draft.keys["hardware"], gpus=facts.gpus_per_node)


def mean_sample_tokens(facts: Facts, asked: Asked, cap: int) -> float:
    """Mean sample with its prompt and all turns, as stated or assumed."""
    prompt, response, _, _ = _means(facts, asked, cap)
    return min(cap, prompt + response * (asked.mean_turns or _mean_turns(facts.turns, facts.least_turns)))


def _means(facts: Facts, asked: Asked, cap: int) -> tuple[int, float, int, float]:
    """Mean prompt and mean response of a turn, the most tokens of a response, and the share of them that it has."""
    prompt = asked.mean_prompt_tokens or _prompt(facts.prompt_cap, cap)[0]
    room = max(2, min(facts.response_cap, cap - prompt))
    turns = asked.mean_turns or _mean_turns(facts.turns, facts.least_turns)
    if facts.cap_of_turn:  # as much of it as leaves all turns within their share of the sequence
        turns = max(1.0, turns * room / max(2, cap - prompt))
    share = RESPONSE_SHARE / turns
    if facts.supervised:
        room, share = cap - prompt, 1.0 if facts.filled else SAMPLE_SHARE
    return prompt, asked.mean_response_tokens or max(1.0, float(round(share * room))), room, share


def _prompt(most: int, cap: int) -> tuple[int, float]:
    """Mean prompt and the standard deviation of its logarithm, where nothing is told but the cap of prompts.

    A cap of their own above LONG_PROMPTS says that they are longer than mathematical problems, and no more: every
    length between is as likely in the logarithm. The cap of a whole sample says nothing of them.
    """
    if LONG_PROMPTS < most < cap:
        return round(math.sqrt(PROMPT_TOKENS * most)), round(math.log(most / PROMPT_TOKENS) / math.sqrt(12), 3)
    return max(1, min(PROMPT_TOKENS, most // 2, cap // 2)), ASSUMED["prompt"]["log_spread"]


def _lengths(draft: Draft, facts: Facts, asked: Asked) -> None:
    cap = draft.keys["workload.max_sequence_tokens"]
    if draft.keys.get("trainer.sequence_packing", True):  # a packed micro-batch holds at least a mean sample
        cap = min(cap, draft.keys.get("trainer.micro_batch_tokens") or cap)
    prompt, mean, room, share = _means(facts, asked, cap)
    draft.keys["workload.prompt_tokens"] = {"kind": "constant", "tokens": prompt}
    if draft.keys.get("workload.max_response_tokens", cap) >= draft.keys["workload.max_sequence_tokens"] - prompt:
        draft.keys.pop("workload.max_response_tokens", None)  # the other cap comes first
    if asked.mean_prompt_tokens is None:
        spread = _prompt(facts.prompt_cap, cap)[1]
        longer = "long_prompt" if prompt > PROMPT_TOKENS else "prompt"
        draft.assume(longer, tokens=prompt, usual=PROMPT_TOKENS, most=facts.prompt_cap, log_spread=spread)
    sigma = RESPONSE_SIGMA if asked.response_log_sigma is None else asked.response_log_sigma
    # Beside a mean the share that is cut fixes the spread (schema/workload.py): log_sigma would be without effect.
    shape = {"log_sigma": sigma} if asked.response_cut_share is None else {"cut_share": asked.response_cut_share}
    draft.keys["workload.response_tokens"] = {"kind": "lognormal", "mean_tokens": float(mean), **shape}
    if facts.filled and asked.mean_response_tokens is None:
        draft.keys["workload.response_tokens"] = {"kind": "constant", "tokens": room}
        draft.assume("packed", tokens=cap)
    elif asked.mean_response_tokens is None and facts.supervised:
        draft.assume("data set", tokens=mean, share=share, room=room)
    elif asked.mean_response_tokens is None:
        draft.assume("response", tokens=mean, share=share, room=room)
    elif asked.response_log_sigma is None and asked.response_cut_share is None:
        draft.assume("sigma", sigma=sigma)


def _mean_turns(most: int, least: int = 1) -> float:
    return max(float(least), min((least + most) / 2, MEAN_TURNS))


def _pools(draft: Draft, facts: Facts, asked: Asked) -> None:
    """Models beside the policy, where all of them have cards; those without stay missing. Assumptions of the other case
    are taken back."""
    pools = [_pool(pool, asked) for pool in facts.pools]
    made = bool(pools) and all(pool["model"] for pool in pools)
    untrue = list(UNPOOLED) if made else ["pools"]
    draft.assumptions = [one for one in draft.assumptions if one["keys"] != untrue]
    if not made:
        return
    draft.keys["pools"] = pools
    # The rules count the GPUs of policy and engines alone; those of pools come on top.
    if gpus := sum(pool.get("gpus", 0) for pool in pools):
        draft.keys["cluster.pool_gpus"] = gpus
        draft.keys["cluster.num_gpus"] += gpus
    draft.assume("pools", names=", ".join(pool["name"] for pool in pools))
    if asked.teacher_gpus is None and any(SERVED in pool for pool in facts.pools):
        draft.assume("served", gpus=1)


def _pool(pool: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """A record of scenario.pools with its card, which is empty where its model has none."""
    card = card_by_shape(pool["model"])
    stated = asked.teacher_model if pool["role"] == "teacher" else None
    gpus = asked.teacher_gpus or 1
    layout = {"gpus": gpus, "tensor_parallel": gpus} if SERVED in pool else {}
    plain = {key: value for key, value in pool.items() if key != SERVED}
    return {**plain, **layout, "model": stated or (card[0] if card else "")}


def _turns(draft: Draft, facts: Facts, asked: Asked) -> None:
    """An agent, where the configuration or an option states more than one turn."""
    stated = math.ceil(2 * (asked.mean_turns or 1) - 1)  # the most of which that is the mean, see _mean_turns
    if (most := min(facts.turns if facts.turns > 1 else stated, MAX_TURNS)) <= 1:
        # Contexts come back to a cache below the GPUs' in further turns alone.
        draft.keys = {key: value for key, value in draft.keys.items() if not key.startswith("engine.kv_offload.")}
        return
    mean = asked.mean_turns or _mean_turns(most, facts.least_turns)
    if mean > most:
        raise InputError(f"--mean-turns {mean:g} exceeds the most turns of the configuration ({most})")
    observed, seconds = asked.observation_tokens or 100, asked.environment_s or 0.0
    turns = {"kind": "lognormal", "mean_turns": mean} if mean < most else {"kind": "constant", "turns": most}
    draft.keys["workload.agent"] = {
        "turns": turns,
        "max_turns": most,
        "observation_tokens": {"kind": "constant", "tokens": observed},
        "environment_s": {"kind": "constant", "seconds": seconds},
    }
    if None in (asked.mean_turns, asked.observation_tokens, asked.environment_s):
        draft.assume("turns", mean=mean, most=most, observed=observed, seconds=seconds)


def _drafting(draft: Draft, facts: Facts, asked: Asked, where: str) -> None:
    method, k = draft.keys.get("speculation.method"), draft.keys.get("speculation.draft_length", 0)
    if method is None or not k:
        # Nothing is drafted without a method and a length: further keys would speak of what does not run.
        for key in [key for key in draft.keys if key.startswith("speculation.")]:
            del draft.keys[key]
        return
    if method == "draft_model":
        known = card_by_shape(facts.drafter)
        card = asked.draft_model or (known[0] if known else None)
        if card is None:
            raise InputError(
                f"{where}: draft model '{shortened(facts.drafter)}' (speculation.method {method}) has no model card; "
                "give --draft-model with the name of a card or the path of its config.json"
            )
        draft.keys["speculation.draft"] = card
    if asked.acceptance_length is not None:
        draft.keys["speculation.acceptance_length"] = asked.acceptance_length
        return
    first = FIRST_ACCEPTANCE.get(method, LEARNED_ACCEPTANCE)
    draft.keys["speculation.first_acceptance"] = first
    draft.assume("acceptance", first=first)
