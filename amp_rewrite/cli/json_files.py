"""What a command found, as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from amp_rewrite import writing
from amp_rewrite.cli.grouping import Flag
from amp_rewrite.cli.written_files import WRITTEN


def json_flag(what: str) -> Flag:
    """The flag `--json FILE`; the command gets the path, or None, as `json_`."""
    return click.option(
        "--json",
        "json_",
        type=WRITTEN,
        metavar="FILE",
        help=f"Write the {what} as JSON.",
    )


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Writes plain data in one step; raises OutputError."""
    writing.write((json.dumps(content, indent=1) + "\n").encode(), path)
