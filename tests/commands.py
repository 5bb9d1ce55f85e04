"""The command line, run in the process of the tests, calls that must be refused, and long tables."""

import re

import pytest
from click.testing import CliRunner

from amp_rewrite.cli import main
from amp_rewrite.errors import AmpRewriteError


def run(*arguments):
    """The result of a command."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def failure(*arguments):
    """The only line of a command that must end with exit code 2; it is on standard error."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.splitlines()
    return line


def rows(table):
    """The cells of each row of a table, `arguments | what the command says`; further lines are indented."""
    return [
        [" ".join(cell.split()) for cell in row.split("|")] for row in re.split(r"\n(?! )", table.strip())
    ]


def refusal(call, *arguments, **fields):
    """The one line of the error of ours that a call ends with."""
    with pytest.raises(AmpRewriteError) as caught:
        call(*arguments, **fields)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 300
    return line


def every(step, cases, name=str):
    """The cases of a long table as parameters: one of `step` runs by default, the others in the slow run."""
    return [
        pytest.param(case, id=name(case), marks=pytest.mark.slow if number % step else ())
        for number, case in enumerate(cases)
    ]
