"""Models beside the policy that configurations state, as records of a scenario's pools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlsim.loading.models import same_layers
from rlsim.readers.frameworks.adapters.nemo_rl_options import teacher_nodes
from rlsim.readers.frameworks.adapters.nemo_rl_values import NemoRl
from rlsim.readers.frameworks.adapters.roll_options import devices
from rlsim.readers.frameworks.adapters.verl_values import Verl
from rlsim.readers.frameworks.asked import SERVED
from rlsim.readers.frameworks.options import TRUE
from rlsim.readers.frameworks.reader import Reader

LAYOUT = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
}
"""Keys of a layout by the names of Megatron's options."""
JUDGED_SHARE = 0.5
"""Share of its cap that a judge generates; assumption, as of responses."""


def verl_teachers(c: Verl) -> tuple[dict[str, Any], ...]:
    """Teachers of on-policy distillation on engines of a pool of their own (trainer/config/distillation/
    distillation.yaml at 1dda039b9; one alone as teacher_model before): num_replicas each, else equal parts of it, and
    one alone all of it whatever its num_replicas (workers/config/distillation.py:289-312)."""
    if not c.r.flag("distillation.enabled"):
        return ()
    alone, several = "distillation.teacher_model", "distillation.teacher_models"
    places = {name: f"{several}.{name}" for name in c.r.section(several)} or {"teacher": alone}
    stated = {name: place for name, place in places.items() if c.r.section(place) and c.r.text(f"{place}.model_path")}
    own = c.r.integer("distillation.n_gpus_per_node") * c.r.integer("distillation.nnodes")
    whole = own or _gpus_of_nodes(c.r, alone)
    found = []
    for name, place in stated.items():
        tensor = c.r.size(f"{place}.inference.tensor_model_parallel_size", 2)
        stages = c.r.size(f"{place}.inference.pipeline_model_parallel_size")
        replica = tensor * stages * c.r.size(f"{place}.inference.data_parallel_size")
        replicas = max(1, whole // len(stated) // replica)
        if list(stated) != ["teacher_model"]:
            replicas = c.r.size(f"{place}.num_replicas", replicas)
        pool = {"name": f"teacher {name}"[:60], "role": "teacher", "model": c.r.text(f"{place}.model_path")}
        layout = {"gpus": replicas * replica if whole else 0, "tensor_parallel": tensor, "pipeline_parallel": stages}
        found.append({**pool, **layout, "share": round(1 / len(stated), 4)})
    return tuple(found)


def verl_reward_model(c: Verl) -> tuple[dict[str, Any], ...]:
    """A reward model that gives each sample a value, on engines or, before the reward loop, on the trainer's workers
    (trainer/config/reward_model/dp_reward_loop.yaml at b178a3cd5). One that a function of the user's own asks may
    generate, and nobody says how much: it stays missing."""
    place = "reward.reward_model" if c.reward_model else "reward_model"
    if not c.r.flag(f"{place}.enable") or c.r.text("custom_reward_function.path"):
        return ()
    model = c.r.text(f"{place}.model.path") or c.r.text(f"{place}.model_path")
    pool = {"name": "reward model", "role": "reward_model", "model": model, "gpus": _gpus_of_nodes(c.r, place)}
    if place == "reward_model" and not c.r.flag("reward_model.use_reward_loop"):
        return ({**pool, "runs_on": "trainer"},)
    return ({**pool, "tensor_parallel": c.r.size(f"{place}.rollout.tensor_model_parallel_size", 2)},)


def _gpus_of_nodes(r: Reader, place: str) -> int:
    """GPUs of a section that counts nodes where it has a pool of its own."""
    if not r.flag(f"{place}.enable_resource_pool"):
        return 0
    return r.integer(f"{place}.n_gpus_per_node") * r.integer(f"{place}.nnodes")


def nemo_rl_teachers(c: NemoRl) -> tuple[dict[str, Any], ...]:
    """The teachers of :func:`teacher_nodes`, each with the layout of its own workers of Megatron or, where they have no
    GPUs of their own, with the trainer's."""
    if teacher := c.r.text("teacher.model_name"):  # algorithms/distillation.py: on the student's GPUs, in its turn
        used = "megatron_cfg" if c.r.flag("teacher.megatron_cfg.enabled") else "dtensor_cfg"
        layout = _layout(c.r, f"teacher.{used}")
        return ({"name": "teacher", "role": "teacher", "model": teacher, "runs_on": "trainer", **layout},)
    if not c.distillation:
        return ()
    own = "on_policy_distillation.non_colocated_teachers"
    apart = c.r.flag(f"{own}.enabled")
    named = c.r.section("on_policy_distillation.teacher_model_by_agent_name")
    agents = {str(model): name for name, model in named.items()}
    found = []
    for model, name in agents.items():
        # What an agent's own section states counts before what all of them share.
        shared = (f"{own}.teacher_overrides.{name}", f"{own}.default_teacher_cfg")
        places = shared if apart else ("policy.megatron_cfg",)
        gpus = _first(c.r, places, "num_nodes") * c.node if apart else 0
        pool = {"name": f"teacher {model.split('/')[-1]}"[:60], "role": "teacher", "model": model, "gpus": gpus}
        found.append({**pool, "runs_on": "trainer", **_layout(c.r, *places), "share": round(1 / len(agents), 4)})
    return tuple(found)


def nemo_rl_reward_models(c: NemoRl) -> tuple[dict[str, Any], ...]:
    """A classic reward model on its own GPUs (environments/reward_model_environment.py)."""
    place = "env.reward_model"
    gpus = c.elsewhere_gpus - teacher_nodes(c.r) * c.node
    if not gpus or not c.r.section(place) or not c.r.text(f"{place}.model_name"):
        return ()
    used = "megatron_cfg" if c.r.section(f"{place}.megatron_cfg") else "dtensor_cfg"
    pool = {"name": "reward model", "role": "reward_model", "model": c.r.text(f"{place}.model_name"), "gpus": gpus}
    return ({**pool, "runs_on": "trainer", **_layout(c.r, f"{place}.{used}")},)


def _layout(r: Reader, *places: str) -> dict[str, int]:
    """A layout by Megatron's names or, in sections of DTensor, without their ``_model``."""
    return {key: _first(r, places, word, word.replace("_model", "")) for key, word in LAYOUT.items()}


def _first(r: Reader, places: tuple[str, ...], *words: str) -> int:
    """The first size that one of the sections ``places`` states under one of ``words``; 1 where none does."""
    stated = (f"{place}.{word}" for place in places for word in words)
    return next((r.size(key) for key in stated if r.value(key) is not None), 1)


def openrlhf_reward_model(r: Reader, shared: bool) -> tuple[dict[str, Any], ...]:
    """The reward model of OpenRLHF, on DeepSpeed's workers of its own GPUs or, shared, of the actor's (cli/
    train_ppo_ray.py:105-143 at 3c3be623)."""
    model, gpus = (
        r.text("reward.model_name_or_path"),
        r.size("reward.num_nodes") * r.size("reward.num_gpus_per_node", 8),
    )
    layout = {"tensor_parallel": r.size("ds.tensor_parallel_size"), "context_parallel": r.size("ds.ring_attn_size")}
    pool = {"name": "reward model", "role": "reward_model", "model": model, "runs_on": "trainer", **layout}
    return ({**pool, "gpus": 0 if shared else gpus},) if model else ()


def roll_judges(r: Reader, training: frozenset[int], generating: frozenset[int]) -> tuple[dict[str, Any], ...]:
    """Judges of ROLL's rewards, each of the samples of its domain, on engines of a reward worker or of the cluster
    whose clients these are (pipeline/rlvr/rewards/llm_judge_reward_worker.py, pipeline/rlvr/rlvr_pipeline.py at
    8eb27cc2). None where one of them is no pool: on transformers, without GPUs, on a part of those of others."""
    found = []
    for name, place, gpus in judge_places(r):
        settings = f"{place}.strategy_args.strategy_config"
        apart = not gpus & (training | generating)
        if not r.text(f"{place}.strategy_args.strategy_name").startswith(("vllm", "sglang")):
            return ()
        if not gpus or not (apart or gpus <= training):
            return ()
        shares = "actor_train.data_args.domain_interleave_probs"
        model = r.text(f"{place}.model_args.model_name_or_path")
        pool = {"name": f"judge {name}"[:60], "role": "judge", "model": model}
        layout = {"gpus": len(gpus) if apart else 0, "tensor_parallel": r.size(f"{settings}.tensor_parallel_size")}
        generated = int(JUDGED_SHARE * r.integer(f"{place}.generating_args.max_new_tokens"))
        share = r.number(f"{shares}.{name}", 1.0) or 1.0
        found.append({**pool, **layout, "share": share, "generated_tokens": generated})
    return tuple(found)


def judge_places(r: Reader) -> Iterator[tuple[str, str, frozenset[int]]]:
    """Name, section and GPUs of each judge that ROLL itself runs."""
    for name in r.section("rewards"):
        place = {"inference": f"rewards.{name}", "cluster": "reward_model"}.get(
            r.text(f"rewards.{name}.judge_model_type")
        )
        if place is not None:
            yield name, place, devices(r.value(f"{place}.device_mapping"))


def slime_teacher(r: Reader, model: str) -> tuple[dict[str, Any], ...]:
    """The teacher that slime's trainer holds beside the student, of its layers and layout (slime/utils/arguments.py:
    1137-1147 at 624b824a8), or those behind addresses: miles routes each sample to one of opd_teacher_urls
    (examples/on_policy_distillation at 31f1ca961), slime all of them to rm_url."""
    if str(r.value("use_opd")).lower() not in TRUE:
        return ()
    if r.value("opd_type") == "megatron":
        layout = {key: r.size(name) for key, name in LAYOUT.items()}
        return ({"name": "teacher", "role": "teacher", "model": model, "runs_on": "trainer", **layout},)
    stated = r.value("opd_teacher_urls") or r.value("rm_url")
    addresses = [str(one).rpartition("=")[2] for one in (stated if isinstance(stated, list) else [stated])]
    servers = r.value("launcher.servers") or []
    return served_teachers(dict.fromkeys(addresses, 1.0), "", servers if isinstance(servers, list) else [])


def served_teachers(
    addresses: Mapping[str, float], model: str, servers: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Teachers behind addresses, which read samples in these proportions. model: what each serves, where it is stated;
    else, with its GPUs, that of the launch script's own server of the same port (launch.py)."""
    found = []
    for address, weight in addresses.items():
        port = re.search(r":(\d+)(/|$)", address)
        beside = (one for one in servers if port and str(one["port"]) == port[1] and "turns" not in one)
        server = next(beside, {"model": model, SERVED: True})
        name = f"teacher {str(server['model']).rstrip('/').split('/')[-1] or address}"[:60]
        share = round(weight / sum(addresses.values()), 4)
        layout = {key: value for key, value in server.items() if key != "port"}
        found.append({"name": name, "role": "teacher", "share": share, **layout})
    return tuple(found)


def areal_teacher(r: Reader, d: int, t: int, p: int, c: int) -> tuple[dict[str, Any], ...]:
    """The teacher of AReaL's distillation, a trainer without an optimizer on GPUs of its own (trainer/rl_trainer.py:
    183-188 at 4aef98d8d). d, t, p, c: its layout."""
    if not r.text("teacher.path"):
        return ()
    shared = r.text("teacher.scheduling_strategy.type").startswith("colocat")
    layout = {"tensor_parallel": t, "pipeline_parallel": p, "context_parallel": c}
    pool = {"name": "teacher", "role": "teacher", "model": r.text("teacher.path"), "runs_on": "trainer"}
    return ({**pool, "gpus": 0 if shared else d * t * p * c, **layout},)


def skyrl_teacher(r: Reader, model: str, used: bool) -> tuple[dict[str, Any], ...]:
    """SkyRL's reference where it has other layers than the policy, which makes it a teacher (config.py:661-673 at
    a9564572e); on the policy's GPUs unless colocate_policy_ref is off beside colocate_all. used: it is asked for."""
    path = r.text("trainer.ref.model.path")
    if not used or not path or same_layers(path, model):
        return ()
    place, megatron = "trainer.placement", "trainer.ref.megatron_config"
    apart = not r.flag(f"{place}.colocate_all", True) and not r.flag(f"{place}.colocate_policy_ref", True)
    gpus = r.size(f"{place}.ref_num_nodes") * r.size(f"{place}.ref_num_gpus_per_node") if apart else 0
    layout = {"context_parallel": r.size("trainer.ref.sequence_parallel_size")}
    if r.text("trainer.strategy") == "megatron":
        layout = {key: r.size(f"{megatron}.{name}") for key, name in LAYOUT.items()}
    pool = {"name": f"teacher {path.rstrip('/').split('/')[-1]}"[:60], "role": "teacher", "model": path}
    return ({**pool, "runs_on": "trainer", "gpus": gpus, **layout},)


def prime_rl_teachers(r: Reader, environments: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Teachers of prime-rl's distillation, each a server that somebody else starts (configs/algorithm.py:49-75 at
    559b44772), of the samples of environments whose algorithm names it, their own or the one of all of them."""
    shared = r.section("orchestrator.algo")
    found = dict[str, float]()
    for one in environments or [{}]:
        algorithm = one.get("algo") or shared
        teacher = algorithm.get("teacher") if isinstance(algorithm, Mapping) else None
        name = str(teacher.get("name", "")) if isinstance(teacher, Mapping) else ""
        found[name] = found.get(name, 0.0) + float(one.get("ratio") or 1)
    whole = sum(found.values())
    return tuple(
        {"name": f"teacher {name.split('/')[-1]}"[:60], "role": "teacher", "model": name, SERVED: True,
         "share": round(weight / whole, 4)}
        for name, weight in found.items() if name
    )  # fmt: skip


def swift_teacher(
    r: Reader, server: str, model: str, layout: tuple[int, int, int] | None
) -> tuple[dict[str, Any], ...]:
    """The teacher behind ms-swift's teacher_model_server, or the one that the trainer holds. layout: GPUs of a layer,
    stages and parts of a context of Megatron-Core."""
    if server:
        return served_teachers({server: 1.0}, model, r.value("launcher.servers") or ())
    if not model:
        return ()
    sizes = dict(zip(("tensor_parallel", "pipeline_parallel", "context_parallel"), layout or (), strict=False))
    pool = {"name": f"teacher {model.split('/')[-1]}"[:60], "role": "teacher", "model": model}
    return ({**pool, "runs_on": "trainer", **sizes},)
