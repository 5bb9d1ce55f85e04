"""The flag that bounds the time that a command may spend on running models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from amp_rewrite.cli.grouping import grouped
from amp_rewrite.process.stoppable import Limit

_FLAG = "--timeout"
_FLAGS = (
    click.option(
        _FLAG,
        type=float,
        metavar="SECONDS",
        help="How long running models may take in all; no limit if not given.",
    ),
)


def _limit(flags: Mapping[str, Any]) -> Limit:
    return Limit(flags["timeout"], _FLAG)


timeout_flag = grouped(_FLAGS, ("timeout",), "limit", _limit)
"""Adds the flag to a command, which gets it as a `Limit` in `limit`."""
