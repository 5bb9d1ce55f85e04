"""The command `amp-rewrite`."""

from __future__ import annotations

import click

from amp_rewrite import version
from amp_rewrite.cli.bench import bench
from amp_rewrite.cli.coverage import coverage
from amp_rewrite.cli.demo import demo
from amp_rewrite.cli.explain import explain
from amp_rewrite.cli.group import DefaultGroup
from amp_rewrite.cli.rewrite import rewrite
from amp_rewrite.cli.verify import verify


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"amp-rewrite, version {version.installed()}")
        context.exit()


@click.group(cls=DefaultGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Rewrite ONNX models from float32 to mixed precision.

    A first argument that is no command means rewrite: amp-rewrite model.onnx -o model_fp16.onnx
    """


for command in (rewrite, verify, bench, explain, coverage, demo):
    main.add_command(command)
