"""The house: rooms of the import contract, the map of them, and how large a room may be."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rlsim"
MOST_MODULES, MOST_FLOORS = 20, 14


def test_the_map_of_rooms_is_what_the_import_contract_says() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "rooms", "--check"])
    assert done.returncode == 0, "run scripts/rooms"


def test_rooms_and_floors_stay_few(script) -> None:
    floors = script("scripts/rooms").floors()
    assert len(floors) <= MOST_FLOORS
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__", "errors", "units"}
    sizes = {
        folder: len([*folder.glob("*.py")]) - 1 for folder in PACKAGE.rglob("*") if (folder / "__init__.py").exists()
    }
    assert {str(folder): size for folder, size in sizes.items() if size > MOST_MODULES} == {}
