"""The command line, run in the process of the tests."""

import re

from click.testing import CliRunner

from amp_rewrite.cli import main


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
