"""What a measured time is grouped by: names of the deviations that runs of one kind share, by half of a scenario.

A group deviates from what physics and fitted terms say by a factor of its own, drawn from a population whose spread is
fitted (docs/uncertainty.md). Names are ``family: member``; a scenario whose member was never measured draws one from
the population of its family.
"""

from rlsim.costs.transfer.methods import Method
from rlsim.schema.engine_parameters import version_order
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario


def engine_groups(engine: str, version: str | None, device: str, model: ModelCard, precision: str) -> tuple[str, ...]:
    """Groups of an engine's iterations; precision: of its weights.

    What a device misses it misses by kernel: untuned grouped products in block FP8 say nothing of dense BF16 ones.
    """
    kernels = f"{'dense' if model.moe is None else 'moe'} {precision}"
    out = (
        f"engine kernels on device: {engine}, {kernels}, {device}",
        f"engine with model: {model.name}",
        f"engine with model on device: {engine}, {model.name}, {device}",
    )
    return out if version is None else (*out, f"engine release: {engine} {series(version)}")


def rollout_groups(scenario: Scenario) -> tuple[str, ...]:
    """Groups of the engine iterations of a rollout: those of serving, and what an RL framework's rollouts share."""
    device, model, stack = scenario.hardware.name, scenario.model.name, scenario.stack
    release = "other" if stack is None else f"{stack.framework} {stack.release or ''}".strip()
    precision = scenario.engine.weight_precision
    return (
        *engine_groups(scenario.engine.name, scenario.engine_version, device, scenario.model, precision),
        f"rollout release: {release}",
        f"rollout of model on device: {model}, {device}",
    )


def trainer_groups(scenario: Scenario) -> tuple[str, ...]:
    """Groups of log-prob passes and updates: the device alone.

    What terms miss of a model or of a model on a device no other scenario shares; it is in the error of a prediction.
    """
    return (f"trainer on device: {scenario.training_device.name}",)


def transfer_groups(framework: str, method: str, model: str) -> tuple[str, ...]:
    """Groups of a weight transfer."""
    return (
        f"transfer framework: {framework}",
        f"transfer method: {framework}, {method}",
        f"transfer of model: {framework}, {model}",
    )


def refit_groups(scenario: Scenario) -> tuple[str, ...]:
    """Groups of a scenario's weight transfer and of what surrounds it.

    On shared GPUs releases hand over by code of their own, which changed most; measured transfers tell no release.
    """
    framework, method, stack = scenario.refit_framework, refit_method(scenario), scenario.stack
    groups = transfer_groups(framework, method, scenario.model.name)
    if method != "cuda_ipc" or stack is None or stack.release is None or stack.framework != framework:
        return groups
    return (*groups, f"transfer release: {framework} {series(stack.release)}")


def phase_groups(scenario: Scenario, run: str | None = None) -> dict[str, tuple[str, ...]]:
    """Groups of each phase, with those of its layout alone: another layout of the same software misses something else.

    run: name of a run that stands for its layout, as of measured rows that no scenario repeats; default what the
    scenario's layout is.
    """
    if scenario.simulation.measured_stack is not None and run is None:  # its own times, from which no group deviates
        return dict.fromkeys(("generation", "logprob", "train", "transfer"), ())
    engine, trainer, drafts = scenario.engine, scenario.trainer, scenario.speculation
    speculation: tuple[str, ...] = ()
    rollout = run or (
        f"{scenario.model.name}, {scenario.hardware.name}, {engine.name}, TP {engine.tensor_parallel}, "
        f"PP {engine.pipeline_parallel}, EP {engine.expert_parallel}, DP {engine.attention_data_parallel}, "
        f"{scenario.cluster.generation} GPUs, {engine.weight_precision}"
    )
    training = run or (
        f"{scenario.model.name}, {scenario.training_device.name}, {trainer.backend}, TP {trainer.tensor_parallel}, "
        f"PP {trainer.pipeline_parallel}, CP {trainer.context_parallel}, EP {trainer.expert_parallel}, "
        f"{scenario.cluster.training} GPUs, {trainer.precision}"
    )
    if run is None and drafts.active:
        how = f"{rollout}, {drafts.method}"
        # Drafting misses something whatever its length, and lengths differ.
        speculation = f"speculation: {how}", f"draft length: {how}, k {drafts.draft_length}"
    trained = (*trainer_groups(scenario), f"training of run: {training}")
    return {
        "generation": (*rollout_groups(scenario), f"rollout of run: {rollout}", *speculation),
        "logprob": trained,
        "train": trained,
        "transfer": (*refit_groups(scenario), f"transfer of run: {run or f'{rollout}; {training}'}"),
    }


def refit_method(scenario: Scenario) -> Method:
    """How the weights travel: as stated, else by what the pools share."""
    if scenario.loop.refit_method != "auto":
        return scenario.loop.refit_method
    return "cuda_ipc" if scenario.cluster.colocated else "nccl_broadcast"


def series(version: str) -> str:
    """A release without its corrections: 0.5.10 of 0.5.10.post1."""
    return ".".join(str(number) for number in version_order(version)[:3])


def family_of(group: str) -> str:
    """The family of a group's name."""
    return group.partition(":")[0]
