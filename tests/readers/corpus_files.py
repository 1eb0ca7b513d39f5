"""The corpus: configurations written for these tests, and the keys that they must cover between them."""

from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
CORPUS = sorted((path.parent.name, path) for path in FOLDER.glob("*/*.yaml"))
IDS = [f"{framework}/{path.stem}" for framework, path in CORPUS]
