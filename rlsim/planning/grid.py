"""One task on a grid of models, devices and numbers of GPUs: each cell as ``project`` has it."""

import itertools
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rlsim.errors import Infeasible, InputError, shortened
from rlsim.files.progress import ProgressLine
from rlsim.loading.scenario import load_scenario
from rlsim.planning.execution import executor
from rlsim.planning.new import plain_limits
from rlsim.planning.plan import best_overrides
from rlsim.planning.size import WAYS
from rlsim.projection.project import projected_step
from rlsim.projection.summary import cost_usd
from rlsim.results.site import GridCell

TASK = "sizing"
"""The scenario that every cell varies."""
MODES = {"sync": 0, "async": 1}
"""Policy lag of each mode: shared GPUs in turns, or a split of them and samples one step old."""


class Grid(Struct, frozen=True):
    """What is looked at. Defaults: sizes and devices that published recipes use, a few minutes on two cores
    (convention). frameworks: names of stacks."""

    models: tuple[str, ...] = (
        "llama-3.1-8b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3",
    )  # fmt: skip
    devices: tuple[str, ...] = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200_nvl72", "mi300x")
    gpus: tuple[int, ...] = (8, 16, 64, 256)
    frameworks: tuple[str, ...] = ("nemo_rl-0.7", "verl", "slime")


class Place(Struct, frozen=True):
    """A model on so many GPUs of a device, with the frameworks to look at."""

    model: str
    device: str
    gpus: int
    frameworks: tuple[str, ...]


def sizing_grid(grid: Grid, jobs: int | None = None) -> list[GridCell]:
    """The cells of ``grid``, by device, model and size. Raises InputError where a name is none."""
    for model, device, name in itertools.product(grid.models, grid.devices, grid.frameworks):
        load_scenario(TASK, [f"model={model}", f"hardware={device}", f"stack={name}"])
    found: dict[str, dict[int, list[GridCell]]] = {}
    total = len(grid.models) * len(grid.devices) * len(grid.gpus)
    with ProgressLine("places of the grid", total) as progress:
        for device in grid.devices:
            places = [Place(model, device, gpus, grid.frameworks) for model in grid.models for gpus in grid.gpus]
            found[device] = {}
            # Processes anew for each device: they hold its tables, and those of all devices are too much for one.
            with executor(jobs, len(places)) as run:
                for index, cells in run(place_cells, places):
                    found[device][index] = cells
                    progress.advance(1)
    each = range(len(grid.models) * len(grid.gpus))
    return [cell for device in grid.devices for index in each for cell in found[device][index]]


def place_cells(place: Place) -> list[GridCell]:
    """The cells of a place: the layout that ``plan`` finds fastest in a mode, under each framework."""
    return [cell for mode in MODES for cell in _cells(place, mode)]


def _cells(place: Place, mode: str) -> Iterator[GridCell]:
    layout, reason = _layout(place, MODES[mode])
    for framework in place.frameworks:
        cell = GridCell(
            model=place.model, device=place.device, gpus=place.gpus, mode=mode, framework=framework, reason=reason
        )
        yield cell if layout is None else _projected(cell, (*layout, f"stack={framework}"))


def _layout(place: Place, lag: int) -> tuple[tuple[str, ...] | None, str]:
    """Words of the fastest layout in the first way that fits, as a size tries them; or None and why there is none."""
    given = (f"model={place.model}", f"hardware={place.device}", f"cluster.num_gpus={place.gpus}")
    reason = ""
    for stages, recompute in WAYS:
        way = [f"engine.pipeline_parallel={stages}"] * (stages > 1)
        way += [f"trainer.recompute={recompute}"] * (recompute != "none")
        try:
            base = load_scenario(TASK, [*given, *way])
            found = best_overrides(base, replace(plain_limits(place.gpus), lags=(lag,)))
        except (Infeasible, InputError) as error:
            reason = reason or str(error)
            continue
        chosen = {**dict(word.split("=") for word in way), **found}
        # Sizes of 1 and lags of 0 are what the task has.
        return (*given, *(f"{key}={value}" for key, value in chosen.items() if _moves(key, value))), ""
    return None, shortened(reason.removeprefix("infeasible: "), 200)


def _moves(key: str, value: object) -> bool:
    return key != "cluster.num_gpus" and (key.startswith("cluster.") or str(value) not in ("0", "1") or key == "lag")


def _projected(cell: GridCell, words: Sequence[str]) -> GridCell:
    """``cell`` with what ``rlsim project TASK WORDS`` answers."""
    words = [word for word in words if word != "lag=0"]
    scenario = load_scenario(TASK, words)
    try:
        step_s, rate, memory = projected_step(scenario)
    except Infeasible as error:
        return cell.model_copy(update={"reason": shortened(str(error).removeprefix("infeasible: "), 200)})
    shares = [use.total_bytes / use.available_bytes for use in memory.values()]
    return GridCell(
        **{name: getattr(cell, name) for name in ("model", "device", "gpus", "mode", "framework")},
        words=tuple(words), step_s=step_s, tokens_per_s_per_gpu=rate,
        usd_per_step=cost_usd(scenario, step_s.mean), memory_share=max(shares),
    )  # fmt: skip
