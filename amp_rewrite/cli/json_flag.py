"""The flag that has a command write what it found as a JSON file."""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite.cli.grouping import Flag


def json_flag(what: str) -> Flag:
    """The flag `--json FILE`; the command gets the path, or None, as `json_`."""
    return click.option(
        "--json",
        "json_",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Write the {what} as JSON.",
    )
