"""docs/design.md says what is so: its lists are held to the code."""

import re
from pathlib import Path

from tests.test_layers import ORDER, PACKAGE, ROOT

PAGE = (ROOT / "docs" / "design.md").read_text()


def section(title):
    """The text below a headline of the page."""
    return next(text for text in PAGE.split("\n## ") if text.startswith(f"{title}\n"))


def is_module(name):
    """Whether a dotted name is a module or a folder of the package."""
    place = PACKAGE.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_the_rooms_are_the_folders_in_their_order():
    """Every folder has one line, in the order in which they import."""
    rows = re.findall(r"^\| `(\w+)` \|", section("The rooms"), flags=re.MULTILINE)
    assert rows == [name for name in ORDER if (PACKAGE / name).is_dir()]


def test_the_stages_name_modules_that_are_there():
    """What a stage is done by exists."""
    lines = [line for line in section("The story, stage by stage").splitlines() if line.startswith("    ")]
    places = [place for line in lines for place in re.split("  +", line)[-1].split(", ")]
    assert len(places) >= 12
    assert [place for place in places if not is_module(place)] == []


def test_what_may_change_a_model_is_there():
    """The list names modules, and the paragraph that names where they mend names modules."""
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", section("What may change a model"))
    assert len(named) >= 8
    assert [name for name in named if not is_module(name)] == []


def test_paths_of_the_page_are_there():
    """A test that the page names exists."""
    for name in re.findall(r"`(tests/[a-z_]+\.py)`", PAGE):
        assert (ROOT / name).is_file(), name
    assert Path(ROOT / "docs" / "design.md").is_file()
