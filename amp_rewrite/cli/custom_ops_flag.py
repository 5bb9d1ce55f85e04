"""`--custom-ops`: libraries of the operators of a model that is run."""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite.cli.flag_builders import PATH, repeatable
from amp_rewrite.running.custom_ops import Libraries


def _distinct(_: click.Context, __: click.Parameter, paths: tuple[Path, ...]) -> Libraries:
    return tuple(dict.fromkeys(path.absolute() for path in paths))


custom_ops_flag = repeatable(
    "--custom-ops",
    "LIBRARY",
    "A shared library with the model's custom operators, for onnxruntime wherever it runs the model.",
    type=PATH,
    callback=_distinct,
)
"""Adds the flag to a command, which gets the libraries as `custom_ops`, not checked yet."""
