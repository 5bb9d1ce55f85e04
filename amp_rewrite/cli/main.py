"""The command `amp-rewrite`."""

from __future__ import annotations

import click

from amp_rewrite import version
from amp_rewrite.cli.group import DefaultGroup


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


COMMANDS = {
    "rewrite": "Rewrite MODEL to mixed precision, and compare the result with it.",
    "verify": "Compare REWRITTEN with ORIGINAL on real or made-up inputs.",
    "bench": "Time models on the same inputs, in turn, and compare each with the first.",
    "explain": "Say what holds parts of MODEL back in float32; for one NODE, with the chain of causes.",
    "coverage": "Count what of MODEL runs in half: nodes, FLOPs, weights, Casts.",
    "placement": "Show what onnxruntime executes of each MODEL on a provider, after its own optimisation.",
    "demo": "Make a small network (convolutions, attention, norms, a loop), rewrite it and compare the two.",
}
"""What the list of commands says of each, in the words that its own help begins with."""

for name, summary in COMMANDS.items():
    # the group loads the command itself when it is called
    main.add_command(click.Command(name, help=summary))
