"""Models beside the policy that configurations state, as records of a scenario's pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlsim.readers.frameworks.adapters.nemo_rl_values import NemoRl, teacher_nodes
from rlsim.readers.frameworks.adapters.verl_values import Verl
from rlsim.readers.frameworks.options import TRUE
from rlsim.readers.frameworks.reader import Reader

LAYOUT = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
}
"""Keys of a layout by the names of Megatron's options."""


def verl_teachers(c: Verl) -> tuple[dict[str, Any], ...]:
    """Teachers of on-policy distillation on engines of a pool of their own (trainer/config/distillation/
    distillation.yaml at 1dda039b9; one alone as teacher_model before): num_replicas each, else equal parts of it."""
    if not c.r.flag("distillation.enabled"):
        return ()
    alone = c.r.value("distillation.teacher_model") or {}
    several = c.r.value("distillation.teacher_models") or {"teacher": alone}
    stated = {name: one for name, one in several.items() if one.get("model_path")}
    own = c.r.integer("distillation.n_gpus_per_node") * c.r.integer("distillation.nnodes")
    whole = own or gpus_of_nodes(alone)
    found = []
    for name, one in stated.items():
        inference = one.get("inference") or {}
        tensor = int(inference.get("tensor_model_parallel_size") or 2)
        replicas = int(one.get("num_replicas") or max(1, whole // len(stated) // tensor))
        pool = {"name": f"teacher {name}"[:60], "role": "teacher", "model": str(one["model_path"])}
        layout = {"gpus": replicas * tensor if whole else 0, "tensor_parallel": tensor}
        found.append({**pool, **layout, "share": round(1 / len(stated), 4)})
    return tuple(found)


def gpus_of_nodes(given: Mapping[str, Any]) -> int:
    """GPUs of a section that counts nodes where it has a pool of its own."""
    return (
        int(given.get("n_gpus_per_node") or 0) * int(given.get("nnodes") or 0) * bool(given.get("enable_resource_pool"))
    )


def nemo_rl_teachers(c: NemoRl) -> tuple[dict[str, Any], ...]:
    """The teachers of :func:`teacher_nodes`, each with the layout of its own workers of Megatron or, where they have no
    GPUs of their own, with the trainer's."""
    if teacher := c.r.text("teacher.model_name"):  # algorithms/distillation.py: on the student's GPUs, in its turn
        section = "megatron_cfg" if c.r.flag("teacher.megatron_cfg.enabled") else "dtensor_cfg"
        stated = c.r.value(f"teacher.{section}") or {}
        layout = {
            key: int(stated.get(word) or stated.get(word.replace("_model", "")) or 1) for key, word in LAYOUT.items()
        }
        return ({"name": "teacher", "role": "teacher", "model": teacher, "runs_on": "trainer", **layout},)
    given = c.r.value("on_policy_distillation") if c.distillation else None
    if not isinstance(given, dict):
        return ()
    own = given.get("non_colocated_teachers") or {}
    apart = str(own.get("enabled")).lower() in TRUE
    usual, special = own.get("default_teacher_cfg") or {}, own.get("teacher_overrides") or {}
    agents = {str(model): name for name, model in (given.get("teacher_model_by_agent_name") or {}).items()}
    found = []
    for model, name in agents.items():
        stated = {**usual, **(special.get(name) or {})} if apart else c.r.value("policy.megatron_cfg") or {}
        layout = {key: int(stated.get(word) or 1) for key, word in LAYOUT.items()}
        gpus = int(stated.get("num_nodes", 1)) * c.node if apart else 0
        pool = {"name": f"teacher {model.split('/')[-1]}"[:60], "role": "teacher", "model": model, "gpus": gpus}
        found.append({**pool, "runs_on": "trainer", **layout, "share": round(1 / len(agents), 4)})
    return tuple(found)


def nemo_rl_reward_models(c: NemoRl) -> tuple[dict[str, Any], ...]:
    """A classic reward model on its own GPUs (environments/reward_model_environment.py)."""
    given = c.r.value("env.reward_model")
    gpus = c.elsewhere_gpus - teacher_nodes(c.teachers_section or {}) * c.node
    if not gpus or not isinstance(given, dict) or not given.get("model_name"):
        return ()
    stated = given.get("megatron_cfg") or given.get("dtensor_cfg") or {}
    layout = {key: int(stated.get(word) or stated.get(word.replace("_model", "")) or 1) for key, word in LAYOUT.items()}
    pool = {"name": "reward model", "role": "reward_model", "model": str(given["model_name"]), "gpus": gpus}
    return ({**pool, "runs_on": "trainer", **layout},)


def slime_teacher(r: Reader, model: str) -> tuple[dict[str, Any], ...]:
    """The teacher that slime's trainer holds beside the student, of its layers and layout (slime/utils/arguments.py:
    1137-1147 at 624b824a8); one on an engine is a server that the launch script starts and no option describes."""
    if str(r.value("use_opd")).lower() not in TRUE or r.value("opd_type") != "megatron":
        return ()
    layout = {key: r.size(name) for key, name in LAYOUT.items()}
    return ({"name": "teacher", "role": "teacher", "model": model, "runs_on": "trainer", **layout},)
