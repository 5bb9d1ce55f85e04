"""Flags of earlier versions are understood, and are not in any help."""

import click
import pytest

from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from amp_rewrite.cli.earlier_flags import translate
from tests.commands import rows, run

ROWS = """
rewrite --no-verify --no-fold --keep-opset       | --skip verify --skip fold --opset keep
rewrite --policy mixed_float16 --observed a.json | --to=mixed_float16 --calibrate=a.json
rewrite --out-dir half --rescale                 | --output=half/ --observe always
rewrite --infer Exp --clear=Reshape --allow Exp  | --list=infer=Exp --list=clear=Reshape --allow Exp
rewrite --require-half --keep-fp32 a             | --require half --keep-full=a
explain --all --advice                           | --show all --show advice
tune --max-error 1e-3 -- --no-fold               | --tolerance=error=1e-3 -- --no-fold
coverage --min-flops 0.9 --require MatMul=1      | --rules=min-flops=0.9 --rules=require=MatMul=1
coverage --if-present --markdown a --github      | --rules if-present --report=markdown=a --report github
train --initial-scale 8 --skip-nonfinite --explain
    | --loss-scale=initial=8 --loss-scale skip-nonfinite --dry-run
"""


@pytest.mark.parametrize(("words", "today"), rows(ROWS))
def test_earlier_flags_are_those_of_today(words, today):
    """Where the command has that flag; all else stays."""
    name, *args = words.split()
    command = loaded(main.commands[name])
    own = {flag for parameter in command.get_params(click.Context(command)) for flag in parameter.opts}
    assert list(translate(args, own)) == today.split()


def test_all_commands_together_have_at_most_seventy_flags():
    """As --help-all lists them, with --help, --help-all and --version."""
    commands = [loaded(stub) for stub in main.commands.values()]
    flags = {
        max(parameter.opts, key=len)
        for command in (main, *commands)
        for parameter in command.get_params(click.Context(command))
        if isinstance(parameter, click.Option)
    }
    assert len(flags) <= 70, sorted(flags)
    assert not {"--no-verify", "--min-flops", "--policy"} & flags
    assert run("coverage", "--help").output.count("--rules") == 1
