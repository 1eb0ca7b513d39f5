"""Cases that a CPU measures in a few seconds; one thread, so that other jobs on the machine cost little."""

import pytest
import torch

from bench.cases import CaseList
from research.assumptions.cases import AssumptionAxes, with_assumptions
from rlsim.calibration.cases import CaseAxes, cases_of

torch.set_num_threads(1)

AXES = CaseAxes(
    models=("tiny", "tiny-moe"), checked_model="tiny", checked_layers=1, tensor_parallel=(1,), rows=(1, 8),
    batches=(1, 2), queries=(1, 2), contexts=(64,), prompts=((1, 64),), moe_tokens=(4,), train_tokens=(32,),
    copy_bytes=(65536,), message_bytes=(4096,), optimizer_parameters=(1024,), composites=((1, 0, 64), (2, 1, 64)),
    max_cached_tokens=4096, max_head_rows=8, peak_gemm=(64, 64, 64), budget_s=1.0, target_spread=0.03, ranks=(2,),
    step_models=(("tiny", 1), ("tiny-moe", 1)), step_tokens=(32,),
)  # fmt: skip
ASSUMED = AssumptionAxes((1, 2), (), (1, 1024), (1, 2), (1,), 65536, (1, 4), ("tiny", "tiny-moe"), ())
TINY = with_assumptions(cases_of(AXES, on_gpu=False), AXES, ASSUMED, on_gpu=False)


@pytest.fixture
def tiny() -> CaseList:
    return TINY
