"""The number of flags, and which have no effect."""

import click
import pytest

from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from amp_rewrite.cli.file_conflicts import INEFFECTIVE
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


@pytest.mark.parametrize("rule", INEFFECTIVE, ids=lambda rule: f"{rule.beside} {rule.flags[0]}")
def test_every_flag_of_the_table_is_one(rule):
    """A flag that is renamed takes the table with it: some command has all that a rule names."""
    named = {flag.split()[0] for flag in (rule.beside, *rule.flags, *rule.unless)}
    spellings = (
        {option for parameter in command.params for option in parameter.opts}
        for command in map(loaded, main.commands.values())
    )
    assert any(named <= each for each in spellings)
