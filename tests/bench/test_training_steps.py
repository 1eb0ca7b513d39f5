"""Whole training steps: the loss falls, every weight learns, recomputation changes memory alone."""

import pytest
import torch

from bench.cases import Case, ModelDims
from bench.operators import prepare
from bench.recording import record_of
from bench.timing import StopRule, Watch
from bench.training_steps import TrainedModel
from bench.workbench import Workbench

CPU = torch.device("cpu")
DENSE = ModelDims(32, 4, 2, 8, 48, 64, layers=2, qk_norm=1)
EXPERTS = ModelDims(32, 4, 2, 8, 16, 64, layers=2, experts=4, top_k=2)


def passed(dims: ModelDims, recompute: str) -> TrainedModel:
    torch.manual_seed(0)
    model = TrainedModel(dims, CPU, torch.float32)
    for _ in range(2):
        model.loss(torch.arange(24).view(2, 12), recompute).backward()
    return model


@pytest.mark.parametrize("dims", [DENSE, EXPERTS])
def test_recomputed_layers_give_equal_gradients_of_every_weight(dims: ModelDims) -> None:
    plain, again = passed(dims, "none"), passed(dims, "full")
    assert all(bool(one.abs().sum() > 0) for one in plain.gradients)
    assert all(parameter.grad is None for parameter in plain.parameters)
    for one, other in zip(plain.gradients, again.gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("dims", [DENSE, EXPERTS])
def test_updates_reach_the_working_weights_and_the_loss_falls(dims: ModelDims) -> None:
    torch.manual_seed(0)
    model, tokens = TrainedModel(dims, CPU, torch.bfloat16), torch.arange(24).view(2, 12)
    for group in model.optimizer.param_groups:
        group["lr"] = 1e-2
    losses = []
    for _ in range(8):
        loss = model.loss(tokens, "none")
        loss.backward()
        model.update()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(one, master.bfloat16()) for one, master in zip(model.parameters, model.masters, strict=True))
    assert not any(bool(one.any()) for one in model.gradients)


def test_a_step_is_recorded_with_its_update_and_without_peaks_on_a_cpu() -> None:
    params = {"model": "m", "layers": 1, "samples": 1, "tokens": 16, "micro_batches": 2, "recompute": "full"}
    case, on = Case("training_step", params), Workbench(CPU, {"m": EXPERTS})
    record = record_of(case, on, Watch(CPU), StopRule(min_repeats=3, max_repeats=3, max_seconds=0.01))
    assert record.sample is not None and record.facts.optimizer_s is not None
    assert 0 < record.facts.optimizer_s < record.seconds
    assert (record.facts.peak_bytes, record.facts.reserved_bytes) == (None, None)
    assert record.facts.prepare_s is not None and record.facts.measure_s is not None
    assert prepare(case, on).long
