"""The libraries that the HTML report carries are those of the record."""

import hashlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "amp_rewrite" / "reporting" / "html" / "vendor"
LIBRARIES = json.loads((FOLDER / "vendor.json").read_text())
FILES = [(name, file["sha256"]) for library in LIBRARIES for name, file in library["files"].items()]


@pytest.mark.parametrize(("name", "expected"), FILES)
def test_a_file_is_the_one_that_was_recorded(name, expected):
    """Nobody edited it, and no checkout changed its line ends."""
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == expected


def test_nothing_else_is_vendored():
    """Every file of the folder is on the record, and each library has its licence beside it."""
    assert {path.name for path in FOLDER.iterdir()} == {"vendor.json", *(name for name, _ in FILES)}
    for library in LIBRARIES:
        assert library["integrity"].startswith("sha512-")
        assert any(name.endswith(".LICENSE") for name in library["files"])
