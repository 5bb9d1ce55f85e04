"""Tables and lines in a terminal, however narrow it is, and in a pipe."""

import io

import pytest

from amp_rewrite.console import SHORTEST, Console, Styled

NAME = "model_1/re_lu_1/" + "FusedBatchNormV3;" * 5 + "Conv2D"


class Terminal(io.StringIO):
    """What a terminal is told."""

    def isatty(self):
        """It is one."""
        return True


def table(out, width):
    """The lines of a table with a long name."""
    columns = ("output", "error", "limit", "verdict")
    Console(file=out, width=width).table(columns, [(NAME, "3.6e-04", "1e-02", Styled("PASS"))], names=0)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 45, 80])
def test_no_number_is_cut(width):
    """A name is cut in the middle, down to a least width; every number stands whole in its row."""
    _, row = table(Terminal(), width)
    name, *numbers = row.split()
    assert numbers == ["3.6e-04", "1e-02", "PASS"]
    beginning, end = name.split("...")
    assert NAME.startswith(beginning)
    assert NAME.endswith(end)
    assert len(name) == SHORTEST or len(row) == width


def test_no_name_is_cut_in_a_pipe():
    """Whoever reads it by a program gets all of it."""
    assert table(io.StringIO(), 40)[1].startswith(f"{NAME}  ")


def test_lines_with_a_label_break_between_words():
    """They go on below the text; a quoted name is cut, a path is not, and in a pipe nothing is."""
    sentence = f"look at Conv '{NAME}' in /a/path/that/is/longer/than/the/line of all: it is off by 1e-2"
    shown, piped = Terminal(), io.StringIO()
    for out in (shown, piped):
        Console(file=out, width=40).labelled(Styled("FAIL  ", "red"), sentence)
    assert piped.getvalue() == f"FAIL  {sentence}\n"
    first, *rest = shown.getvalue().splitlines()
    assert first.endswith("FAIL  look at Conv") or "look at Conv 'model" in first
    assert all(line.startswith("      ") for line in rest)
    assert "...rmV3;Conv2D'" not in first
    assert "/a/path/that/is/longer/than/the/line" in shown.getvalue()
    assert NAME not in shown.getvalue()
