"""What only ``rlsim calibrate`` measures: taken where it was measured, carried over elsewhere, felt in the interval."""

import math
from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
import yaml

from rlsim.costs.engine.draft import Drafting
from rlsim.costs.operators import device
from rlsim.costs.operators.device import borrowed_tables, tables_error
from rlsim.costs.operators.operators import Operators, TableSource
from rlsim.costs.operators.work import heads_of
from rlsim.costs.prices import PriceInputs
from rlsim.loading.models import load_card
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables import files
from rlsim.tables.operators import OperatorTables
from rlsim.tables.profile import load_profile

CARD = load_card("qwen3-8b")
VOCABULARY, DRAFTS = CARD.vocab_size, 32_000
QUERIES, BATCHES, CONTEXTS = (1, 4, 8), (1, 16, 256), (512, 4096, 32768)
CHECK = {"composites": 40, "median_abs_error": 0.05, "p90_abs_error": 0.2}
HOST = {"eager_launch_s": 5e-6, "graph_replay_s": 2e-5}


def attention_s(queries: int, batch: int, context: int) -> float:
    """Half the bandwidth of an H200 and 40 % more for every query."""
    return 1e-5 + 2 * batch * context * 8 * 128 * 2 / 2.4e12 * (1 + 0.4 * (queries - 1))


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    """A calibration folder in which rlsim measured an H200."""
    folder = tmp_path / "h200_sxm" / "measured"
    grid = [(q, b, c) for q in QUERIES for b in BATCHES for c in CONTEXTS]
    heads = (128, "bf16", CARD.num_heads, CARD.num_kv_heads)
    sampled = [
        (op, v, r, r * v * 2e-12) for op, v in (("softmax", VOCABULARY), ("draw", DRAFTS)) for r in (1, 64, 4096)
    ]
    tested = [(VOCABULARY, DRAFTS, q, b, b * 1e-6) for q in QUERIES for b in BATCHES]
    attention = [(*heads, *point, attention_s(*point)) for point in grid]
    builders.faked(folder, (files.VERIFY_ATTENTION, attention), (files.SAMPLING, sampled), (files.REJECTION, tested))
    stated = {"device": "NVIDIA H200", "host": HOST, "self_check": CHECK}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(stated))
    return tmp_path


def operators(name: str, calibration: Path) -> Operators:
    profile = load_profile(name)
    return Operators(
        profile, builders.tables_of(profile), profile, borrowed_tables(profile, profile, None, calibration)
    )


def verified(given: Operators, queries: int, batch: float = 16.0, context: float = 4096.0) -> Any:
    found = given.verify_attention(heads_of(CARD, 1), np.array([batch]), np.array([context]), queries)
    assert found is not None
    return found


def decoded(given: Operators, context: float) -> Any:
    return given.decode_attention(heads_of(CARD, 1), np.array([16.0]), np.array([context]))


def test_a_ratio_of_several_queries_is_carried_over_and_own_measurements_come_back(calibration: Path) -> None:
    """Measured is torch's kernel; the engine's own decode attention is known, so its ratio is what counts."""
    given = operators("h200_sxm", calibration)
    found, once = verified(given, 4), decoded(given, 4096.0)
    assert found.seconds == pytest.approx(once.seconds * attention_s(4, 16, 4096) / attention_s(1, 16, 4096), rel=1e-3)
    assert found.measured == once.measured == 1.0
    assert found.seconds != pytest.approx(attention_s(4, 16, 4096), rel=0.05)
    # Attention of 4 queries is bound by memory on both: the rooflines change nothing.
    here, there = operators("h100_sxm", calibration), operators("h200_sxm", calibration)
    ratios = [verified(given, 4).seconds / decoded(given, 4096.0).seconds for given in (here, there)]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-6)
    assert ratios[0] > 1.5
    assert verified(here, 4).measured == 0.0
    profile = load_profile("h200_sxm")
    heads = (128, "bf16", CARD.num_heads, CARD.num_kv_heads)
    rows = [(*heads, c, b, attention_s(1, b, c)) for b in BATCHES for c in CONTEXTS]
    builders.faked(calibration / "h200_sxm" / "measured", (files.DECODE_ATTENTION, rows))
    given = Operators(profile, OperatorTables.load("h200_sxm", "measured", calibration), profile)
    assert verified(given, 4).seconds == pytest.approx(attention_s(4, 16, 4096), rel=0.02)


def test_without_a_measured_device_nothing_is_claimed(tmp_path: Path) -> None:
    profile = load_profile("h100_sxm")
    assert borrowed_tables(profile, profile, None, tmp_path) is None
    bare = builders.operators(profile)
    rows = np.ones(1)
    assert bare.verify_attention(heads_of(CARD, 1), rows, rows, 4) is None
    assert bare.sampling(rows, VOCABULARY) is None
    assert bare.rejection(rows, 4, VOCABULARY, DRAFTS) is None
    assert bare.host_s("eager_launch") is None


def test_the_nearest_measured_device_lends_to_all_but_tables_that_rlsim_measured(calibration: Path) -> None:
    profile = load_profile("h100_sxm")
    own = OperatorTables.load("h200_sxm", "measured", calibration)
    assert borrowed_tables(profile, profile, own, calibration) is None
    imported = builders.tables_of(profile)
    assert borrowed_tables(profile, profile, imported, calibration) is not None
    blackwell = calibration / "b200_sxm" / "measured"
    blackwell.mkdir(parents=True)
    (blackwell / "metadata.yaml").write_text("device: NVIDIA B200\n")
    for name, lender in (("gb200_nvl72", "b200_sxm"), ("h100_sxm", "h200_sxm"), ("a100_sxm", "h200_sxm")):
        profile = load_profile(name)
        lent = borrowed_tables(profile, profile, None, calibration)
        assert lent is not None and lent.transferred
        assert lent.device.name == lender


def test_other_vocabularies_scale_and_measured_replays_are_of_their_device_only(calibration: Path) -> None:
    given = operators("h200_sxm", calibration)
    rows = np.array([64.0])
    drawn, doubled = given.sampling(rows, VOCABULARY), given.sampling(rows, 2 * VOCABULARY)
    assert drawn.seconds == pytest.approx(64 * VOCABULARY * 4e-12, rel=1e-3)
    assert doubled.seconds == pytest.approx(2 * drawn.seconds, rel=1e-6)
    assert 0 < drawn.measured < 1, "the draw was measured over the draft's vocabulary only"
    assert doubled.measured == 0.0
    assert operators("h200_sxm", calibration).host_s("graph_replay") == HOST["graph_replay_s"]
    assert operators("h100_sxm", calibration).host_s("graph_replay") is None
    slower = builders.scaled(load_profile("h200_sxm"), "eager_launch_s", 3.0)
    changed = Operators(slower, None, load_profile("h200_sxm"),
                        borrowed_tables(slower, load_profile("h200_sxm"), None, calibration))  # fmt: skip
    assert changed.host_s("graph_replay") is None, "what the user changes is no longer what was measured"


def lend(monkeypatch: pytest.MonkeyPatch, calibration: Path) -> None:
    """Let shipped profiles borrow the tables of ``calibration``."""
    monkeypatch.setattr(device, "borrowed_tables", lambda *args: borrowed_tables(*args, calibration))
    monkeypatch.setattr(device, "_device", device._device.__wrapped__)


def build(draft_length: int, hardware: HardwareProfile | str = "h200_sxm") -> Any:
    chosen = {**builders.EAGLE, "draft_length": draft_length} if draft_length else {}
    return builders.Costs(builders.scenario(hardware=hardware, speculation=chosen)).iteration_costs


def test_rejection_takes_its_measurement_or_its_launches(calibration: Path) -> None:
    chosen = builders.scenario(hardware="h200_sxm", speculation=builders.EAGLE)
    layers = builders.layers(chosen)
    measured = type(layers)(layers.card, layers.engine, operators("h200_sxm", calibration), layers.fabric)
    drafting = Drafting(measured, chosen.speculation, HOST["eager_launch_s"])
    few, many = drafting.rejection(np.array([1.0])), drafting.rejection(np.array([1000.0]))
    assert (few.seconds, few.measured) == (pytest.approx(20 * HOST["eager_launch_s"]), 0.0)
    assert many.seconds == pytest.approx(4000 * VOCABULARY * 2e-12 + 1000 * 1e-6, rel=0.02)


def test_self_checks_widen_and_verification_costs_what_was_measured(
    calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = operators("h200_sxm", calibration).sources
    carried = operators("h100_sxm", calibration).sources
    # The 90th percentile of absolute errors lies 1.645 standard deviations out.
    assert tables_error(own) == pytest.approx(math.log(1.2) / 1.6448536269514722)
    assert tables_error(carried) == pytest.approx(2 * tables_error(own))
    assert tables_error([TableSource(OperatorTables.load("h100_sxm", "vllm"), load_profile("h100_sxm"))]) == 0.0
    before = PriceInputs(builders.scenario(hardware="h200_sxm")).overheads
    lend(monkeypatch, calibration)
    after = PriceInputs(builders.scenario(hardware="h200_sxm")).overheads
    assert before.tables_error == 0.0
    assert after.tables_error == pytest.approx(tables_error(own))
    costs = {k: build(k) for k in (0, 3, 7)}
    grid = np.arange(costs[0].table.attention_s.shape[1]) * costs[0].table.context_step_tokens
    attention = {k: c.attention["attention"].seconds[16] for k, c in costs.items()}
    longer = np.interp(2048.0, grid, attention[3]) / np.interp(2048.0, grid, attention[0])
    assert longer == pytest.approx(attention_s(4, 16, 2048) / attention_s(1, 16, 2048), rel=0.05)
    assert (attention[3] >= attention[0]).all() and (attention[7] >= attention[3]).all()
    assert np.mean(costs[3].attention["attention"].measured) > 0.5
