"""The number of flags."""

import click

from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from tests.commands import run


def test_all_commands_together_have_at_most_sixty_flags():
    """As --help-all lists them, with --help, --help-all and --version."""
    commands = [loaded(stub) for stub in main.commands.values()]
    flags = {
        max(parameter.opts, key=len)
        for command in (main, *commands)
        for parameter in command.get_params(click.Context(command))
        if isinstance(parameter, click.Option)
    }
    assert len(flags) <= 60, sorted(flags)
    assert run("coverage", "--help").output.count("--rules") == 1
