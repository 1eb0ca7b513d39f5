"""How many steps of a run a data set lasts."""

import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.runs.run import MOST_STEPS, _steps_of_data


def test_a_data_set_lasts_whole_batches_of_each_epoch() -> None:
    one = load_scenario(
        "quickstart",
        ["workload.prompts_per_step=50", "workload.usable_group_share=0.5", "trainer.global_batch_samples=null"],
    )
    for rows, epochs, steps in ((1000, 1, 10), (1099, 1, 10), (1099, 2.5, 25), (100, 1, 1), (300, 0.5, 1)):
        assert _steps_of_data(one, rows, epochs) == steps
    for rows, epochs in ((99, 1), (1000, 0), (1000, MOST_STEPS + 1), (100, 0.9)):
        with pytest.raises(InputError, match="--epochs"):
            _steps_of_data(one, rows, epochs)
