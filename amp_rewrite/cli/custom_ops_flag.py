"""`--custom-ops`: libraries of the operators of a model that is run."""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite.cli.flag_builders import PATH, repeatable
from amp_rewrite.running import run_arguments
from amp_rewrite.running.custom_ops import Libraries


def _checked(_: click.Context, __: click.Parameter, paths: tuple[Path, ...]) -> Libraries:
    return run_arguments.libraries(paths)


custom_ops_flag = repeatable(
    "--custom-ops",
    "LIBRARY",
    "A shared library with the model's custom operators, for onnxruntime wherever it runs the model.",
    type=PATH,
    callback=_checked,
)
"""Adds the flag to a command, which gets the libraries as `custom_ops`."""
