"""Files of fitted transfer parameters: what they must hold, and who says where they come from."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, scenario_digest
from rlsim.parameters.sets import load_transfer_parameters, own_sets
from rlsim.schema.engine_parameters import OTHER


def write(folder: Path, **changes: Any) -> str:
    content = {**load_transfer_parameters("start").model_dump(mode="json"), **changes}
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"families": []}, "families"),
        ({"error": 2.0}, "error"),
        ({"assumed": ["speed"]}, "assumed names speed"),
        ({"extra": 1}, "extra"),
    ],
)
def test_wrong_values_name_file_and_key(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named) as caught:
        load_transfer_parameters(write(tmp_path, **changes))
    assert "own.yaml" in str(caught.value)


@pytest.mark.parametrize("name", ["nemo_rl", OTHER])
def test_each_framework_stands_once_and_other_never(name: str, tmp_path: Path) -> None:
    family = load_transfer_parameters("start").families[0].model_dump(mode="json")
    families = [family, {**family, "framework": name}]
    with pytest.raises(InputError, match="families"):
        load_transfer_parameters(write(tmp_path, families=families))


def test_a_scenario_names_its_set_and_it_counts_in_the_digest(tmp_path: Path) -> None:
    plain = load_scenario("quickstart")
    own = load_scenario("quickstart", [f"simulation.transfer_parameters={write(tmp_path, name='own')}"])
    assert own_sets(plain).transfers.name == "measured"
    assert own_sets(own).transfers.name == "own"
    assert scenario_digest(plain) != scenario_digest(own)


def test_the_shipped_fit_says_what_it_rests_on() -> None:
    found = load_transfer_parameters()
    assert found.fit.rows >= 80
    assert found.fit.determined < found.fit.rows / 3
    assert found.fit.median_error < 0.25
    assert all(family.source and family.rows for family in found.families)
