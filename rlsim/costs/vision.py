"""What images cost beside their tokens: the passes of a vision tower, on engines and on trainers."""

import numpy as np

from rlsim.costs.interface import Part, PhaseCost
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.work import Matrix
from rlsim.schema.scenario import Scenario

TOWER = "vision tower"
"""Part of log-probs and updates."""
TRAINED_PASSES, FROZEN_PASSES = 3.0, 1.0
"""Forward passes that an update of the tower is worth: backward takes twice the products of forward."""


def tower_s(scenario: Scenario, operators: Operators, tensor_parallel: int = 1) -> float:
    """Seconds of the tower's forward pass over the images of one prompt, sharded over ``tensor_parallel`` GPUs; 0 of
    scenarios without images.

    Products as the tables have them, of the patches of an image at once in BF16; attention at the rate of prompts'. No
    tower was measured: modelled.
    """
    images, tower = scenario.workload.images, scenario.model.vision
    if images is None or tower is None:
        return 0.0
    tokens = float(images.image_tokens)
    patches = tokens * tower.merged_patches
    layer = [Matrix(name, max(1, n // tensor_parallel), k) for name, n, k in tower.layer_matrices()]
    merger = [Matrix(*one) for one in tower.merger_matrices(scenario.model.hidden_size)]
    products_s = tower.num_layers * operators.gemms(np.array([patches]), layer, "bf16").seconds
    merged_s = tower.mergers * operators.gemms(np.array([tokens]), merger, "bf16").seconds
    attention_s = operators.attention_compute_s(np.array([tower.attention_flops(patches) / tensor_parallel]))
    return images.per_prompt * float((products_s + merged_s + attention_s)[0])


def update_passes(scenario: Scenario) -> float:
    """Forward passes of the tower that an update is worth."""
    return FROZEN_PASSES if scenario.trainer.frozen_vision else TRAINED_PASSES


def seeing(cost: PhaseCost, seconds: float) -> PhaseCost:
    """A phase of the trainer with so many seconds of the tower; as it is without."""
    return cost if not seconds else PhaseCost.of((*cost.parts, Part(TOWER, seconds, "compute")))
