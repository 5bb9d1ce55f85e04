"""What is printed: tables and lines in a terminal, however narrow it is, and in a pipe."""

import io
from pathlib import Path

import pytest

from amp_rewrite.console import SHORTEST, Console, Styled
from amp_rewrite.reporting import terminal
from amp_rewrite.running.latency import Bench, TimedModel
from amp_rewrite.running.sessions import Device
from amp_rewrite.text import LONGEST_NAME

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


def test_a_table_in_a_pipe_has_a_line_for_each_row():
    """Names are whole, where they are of any sensible length, and do not fold at 40 columns."""
    assert table(io.StringIO(), 40)[1].startswith(f"{NAME}  ")
    out = io.StringIO()
    Console(file=out, width=40).table(("a", "b"), [(NAME, "x"), ("a\nb\t", "y"), ("n " * 5000, "z")])
    _, *rows = out.getvalue().splitlines()
    assert [row.split()[-1] for row in rows] == ["x", "y", "z"]
    assert rows[0].startswith(NAME)
    assert rows[1].startswith(r"a\nb\t")
    assert all(len(row) < LONGEST_NAME + 5 for row in rows)


def test_a_line_is_a_line():
    """In whatever part a line end comes, and however long the line is."""
    out, words = io.StringIO(), "word " * 50 + "end"
    Console(file=out, width=20).print(Styled("a\nb", "bold"), "\x1b[1m\r", words)
    assert out.getvalue() == rf"a\nb\x1b[1m\r{words}" + "\n"


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
    assert "/a/path/that/is/longer/than/the/line" in shown.getvalue()
    assert NAME not in shown.getvalue()


# ---- the table of `bench`


def bench(*models, device=Device.CUDA):
    """A bench of models with these names, milliseconds and uses of TF32."""
    timed = [TimedModel(name, Path(name), tf32) for name, _, tf32 in models]
    rounds = [tuple(ms / 1000 for _, ms, _ in models)] * 40
    return Bench(timed, rounds, device, "1.31.1")


def printed(made):
    """What a terminal of 80 columns shows."""
    out = io.StringIO()
    terminal.print_bench(Console(file=out, width=80), made)
    return out.getvalue()


def test_a_bench_has_a_column_for_each_model():
    """Figures are below the model's letter; TF32 is reported, but on the CPU, and names are as they are."""
    shown = printed(bench(("a.onnx", 4.0, True), ("b.onnx", 2.0, False)))
    assert "on CUDA, onnxruntime 1.31.1, 40 rounds" in shown
    assert "A  a.onnx (TF32 on)" in shown
    assert "B  b.onnx (TF32 off)" in shown
    rows = {line[:20].strip(): line[20:].split() for line in shown.splitlines()}
    assert rows["p50 ms"] == ["4.000", "2.000"]
    assert rows["speed against A"] == ["1.00x", "2.00x"]
    assert rows["with 90 % between"] == "2.00 to 2.00".split()
    shown = printed(bench(("[bold]a", 1.0, False), device=Device.CPU))
    assert "[bold]a" in shown
    assert "TF32" not in shown
    assert terminal.letters(30)[25:29] == ["Z", "AA", "AB", "AC"]
