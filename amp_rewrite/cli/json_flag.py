"""The flag that has a command write what it found as a JSON file."""

from __future__ import annotations

import click

from amp_rewrite.cli.grouping import Flag
from amp_rewrite.cli.touched_files import WRITTEN


def json_flag(what: str) -> Flag:
    """The flag `--json FILE`; the command gets the path, or None, as `json_`."""
    return click.option(
        "--json",
        "json_",
        type=WRITTEN,
        metavar="FILE",
        help=f"Write the {what} as JSON.",
    )
