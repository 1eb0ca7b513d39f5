"""Posteriors: their file, how a scenario names one, and what it changes."""

import io
import random
import zipfile
from math import inf, log
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from rlsim.costs.operators.groups import engine_groups
from rlsim.errors import InputError
from rlsim.files.archives import archive, unarchived
from rlsim.loading.models import load_card
from rlsim.loading.scenario import dump_scenario, load_scenario, scenario_digest
from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior, order_of, ordered_mean, shipped_order
from rlsim.parameters.sets import shipped
from rlsim.parameters.terms import current, fitted_of, moved, terms_of
from rlsim.projection.project import project
from rlsim.tables.profile import load_profile


def joint() -> Posterior:
    found = load_posterior(DEFAULT)
    return found


def test_a_posterior_comes_back_and_counts_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(joint().to_bytes())
    found = load_posterior(str(path))
    assert found is not None and found.columns == joint().columns
    assert np.array_equal(found.mean, joint().mean) and np.array_equal(found.factor, joint().factor)
    assert found.to_bytes() == joint().to_bytes()
    scenario = load_scenario("quickstart", ["simulation.engine_parameters.network_hop_s=1e-5"])
    found = fitted_of(scenario)
    assert found.engines.network_hop_s == 1e-5 and found.posterior is None
    assert found.training == current().training
    changed = replace(joint(), mean=joint().mean + np.where(np.arange(len(joint().mean)) < joint().terms, 0.0, 0.1))
    for name, one in (("same", joint()), ("other", changed)):
        (tmp_path / f"{name}.npz").write_bytes(one.to_bytes())
    (tmp_path / "own.yaml").write_text(
        dump_scenario(load_scenario("quickstart")).replace("posterior: joint", "posterior: same.npz")
    )
    from_folder = load_scenario(tmp_path / "own.yaml")
    assert from_folder.simulation.posterior == str((tmp_path / "same.npz").resolve())
    other = load_scenario(tmp_path / "own.yaml", [f"simulation.posterior={tmp_path / 'other.npz'}"])
    default = load_scenario("quickstart")
    assert scenario_digest(from_folder) == scenario_digest(default) != scenario_digest(other)
    assert project(from_folder).candidate.step_s == project(default).candidate.step_s
    assert project(other).candidate.step_s.mean > project(default).candidate.step_s.mean


@pytest.mark.parametrize(
    ("given", "told"), [("joined", "nearest: joint"), ("absent.npz", r"absent\.npz: no such file")]
)
def test_one_that_is_not_there_is_named(given: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load_scenario("quickstart", [f"simulation.posterior={given}"])
    assert "simulation.posterior" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY"])
def test_another_file_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz: is no posterior"):
        load_scenario("quickstart", [f"simulation.posterior={tmp_path / 'x.npz'}"])


def test_each_term_moves_one_set_and_measured_deviations_are_taken() -> None:
    sets = shipped()
    for term in terms_of(sets):
        after = moved(sets, {term.name: 0.2})
        changed = [name for name, one in after.sets.items() if one != sets.sets[name]]
        head = term.name.partition("/")[0]
        assert changed in ([head], []), term.name
        # Only shares that are 1 already cannot grow.
        if not changed:
            assert moved(sets, {term.name: -0.2}).sets[head] != sets.sets[head] or "share" in term.name, term.name
    with pytest.raises(KeyError):
        moved(sets, {"engines/no_such_engine/iteration_s": 0.1})
    posterior = joint()
    name = next(name for name in posterior.columns[posterior.terms :] if name.endswith("h200_sxm"))
    place = posterior.columns.index(name)
    assert posterior.mean_of(name) == posterior.mean[place]
    without = replace(posterior, device_order={})
    assert without.mean_of("engine kernels on device: vllm, dense bf16, h200_sxm") == 0.0
    assert np.isfinite(posterior.mean_of("engine kernels on device: vllm, dense bf16, h200_sxm"))
    dense, moe = load_card("llama-3.1-8b"), load_card("qwen3-30b-a3b")
    groups = {(card.name, precision): engine_groups("vllm", None, "h200_sxm", card, precision)[0]
              for card in (dense, moe) for precision in ("bf16", "fp8_block")}  # fmt: skip
    assert len(set(groups.values())) == 4
    assert all("h200_sxm" in group and group.startswith("engine kernels on device: vllm") for group in groups.values())


ORDER = {"best": {"good": 0.0, "old": 0.5}, "good": {"old": 0.5}}


def test_a_better_device_is_not_slower_by_order_or_answer() -> None:
    order = shipped_order()
    assert order["h200_sxm"]["h100_sxm"] == 0.0  # the same chip with more memory bandwidth
    assert order["b200_sxm"]["h100_sxm"] == pytest.approx(log(2250 / 989), rel=0.01)
    assert "h100_sxm" not in order.get("gb200_nvl72", {})  # another host
    assert "h200_sxm" not in order.get("h100_sxm", {})
    assert "mi300x" not in order and all("rtx_4090" not in gains for gains in order.values())  # no kernels measured
    h100 = load_profile("h100_sxm")
    assert order_of([h100, h100]) == {}
    # The same chip with more memory bandwidth generated 13 % slower, and trained 8 % slower, by deviations alone.
    small = ["simulation.replications=1", "workload.prompts_per_step=32"]
    old, new = (project(load_scenario("quickstart", [f"hardware={name}", *small])) for name in ("h100_sxm", "h200_sxm"))
    for phase in ("generation_s", "train_s", "logprob_s"):
        assert new.candidate.phases[phase].mean <= old.candidate.phases[phase].mean * 1.001, phase
        assert new.baseline.phases[phase].mean <= old.baseline.phases[phase].mean * 1.001, phase


@pytest.mark.parametrize(("device", "measured", "expected"), [
    ("best", {}, 0.0),
    ("best", {"good": -0.1}, -0.1),  # not slower than a worse device
    ("best", {"good": 0.2}, 0.0),
    ("best", {"old": -0.6}, -0.1),  # what the datasheets leave between them counts
    ("old", {"best": 0.8}, 0.3),  # not faster than a better one
    ("good", {"best": 0.1, "old": -0.7}, (0.1 - 0.2) / 2),  # both cannot hold
    ("unknown", {"best": 0.4}, 0.0),
])  # fmt: skip
def test_the_unmeasured_moves_as_the_order_asks(device: str, measured: dict[str, float], expected: float) -> None:
    assert ordered_mean(device, measured, ORDER) == pytest.approx(expected)


def test_no_deviation_of_one_device_alone_turns_the_order_around() -> None:
    posterior, order = joint(), shipped_order()
    fitted = {*posterior.device_order, *(worse for gains in posterior.device_order.values() for worse in gains)}
    known = {
        name: {worse: gain for worse, gain in order[name].items() if worse in fitted} for name in fitted & {*order}
    }
    assert posterior.device_order == {name: gains for name, gains in known.items() if gains}
    by_stem: dict[str, dict[str, float]] = {}
    for name in posterior.columns[posterior.terms :]:
        stem, _, device = name.rpartition(" ")
        by_stem.setdefault(stem, {})[device] = posterior.mean_of(name)
    alone = 0
    for stem, means in by_stem.items():
        for better, gains in order.items():
            for worse, gain in gains.items():
                if worse in means and better not in means:
                    if better not in fitted:
                        continue
                    higher = [m - order[d][better] for d, m in means.items() if better in order.get(d, {})]
                    if max(higher, default=-inf) <= means[worse] + gain:
                        assert posterior.mean_of(f"{stem} {better}") <= means[worse] + gain + 1e-12
                        alone += 1
    assert alone > 5


def test_archives_come_back_or_are_refused_where_damaged() -> None:
    arrays = {"a": np.arange(1000, dtype=np.int32), "b": np.linspace(0.0, 1.0, 7)}
    content = archive(arrays)
    assert content == archive(arrays)
    found = unarchived(content)
    assert all(np.array_equal(found[name], values) for name, values in arrays.items())
    assert list(unarchived(content, lambda name: name == "b")) == ["b"]
    header, buffer = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.npy", header.getvalue() + b"\0" * 24)
    with pytest.raises(ValueError, match=r"allocate|memory|read"):
        unarchived(buffer.getvalue())
    content = archive({"numbers": np.random.default_rng(0).integers(0, 50, 3000), "words": np.array(["one", "two"])})
    drawn, refused = random.Random(1), 0
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(drawn.choice([1, 3, 20])):
            damaged[drawn.randrange(len(damaged))] = drawn.randrange(256)
        if drawn.random() < 0.1:
            del damaged[drawn.randrange(len(damaged)) :]
        try:
            unarchived(bytes(damaged))
        except ValueError:
            refused += 1
    assert refused > 1000
