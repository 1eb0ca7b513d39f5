"""Least seconds of a trainer's work, found in a part of the time that pricing it takes; what a search cuts by."""

import numpy as np

from rlsim.costs.trainer.layout import TrainedBatch
from rlsim.costs.trainer.training import TrainerInputs, batches_of


def floors_s(inputs: TrainerInputs, batch: TrainedBatch) -> tuple[float, float]:
    """Least seconds of :func:`train_cost` and of the log-probs of a step by their host alone, in a thirtieth of the
    time that either takes to price."""
    training, factor = inputs.costs, inputs.overheads.factor
    update_s, logprob_s = (training.floor_s(batches_of(inputs, batch, way), way) for way in (True, False))
    logprob_s *= inputs.overheads.logprob_factor
    return factor * update_s * inputs.trainer.epochs, factor * logprob_s * inputs.logprob_passes


@np.errstate(invalid="raise", divide="raise")
def stages_s(inputs: TrainerInputs, batch: TrainedBatch) -> float:
    """Least seconds of :func:`train_cost` by the layers of its stages alone, in half of the time."""
    return inputs.overheads.factor * inputs.costs.stages_s(batches_of(inputs, batch, True)) * inputs.trainer.epochs
