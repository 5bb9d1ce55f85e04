"""Tables in a terminal, however narrow it is."""

import io

import pytest
from rich.table import Column

from amp_rewrite.console import FOLDED, Console


class Terminal(io.StringIO):
    """What a terminal is told."""

    def isatty(self):
        """It is one."""
        return True


@pytest.mark.parametrize("width", [20, 45, 80])
def test_no_number_is_cut(width):
    """A name folds, down to a least width; every number stands whole on the line of its row."""
    out, name = Terminal(), "a" * (FOLDED + 3)
    columns = (Column("output", overflow="fold"), "error", "relative L2", "verdict")
    Console(file=out, width=width).table(columns, [(name, "3.6e-04", "1.5e-04", "PASS")])
    row = next(line for line in out.getvalue().splitlines() if line.startswith("a"))
    first, *numbers = row.split()
    assert numbers == ["3.6e-04", "1.5e-04", "PASS"]
    assert "…" not in out.getvalue()
    assert FOLDED <= len(first) <= len(name)
