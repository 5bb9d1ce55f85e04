"""The flags `--output`, `--external-data` and `--json`: where a result, its weights and a report go."""

from __future__ import annotations

import re
from typing import Any

import click

from amp_rewrite.cli.flag_builders import WRITTEN, Flag, switch, written_file
from amp_rewrite.errors import OptionError
from amp_rewrite.policy.options import Beside, ExternalData

_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmg]i?b)", re.IGNORECASE)


def _external_data(_: click.Context, __: click.Parameter, text: str) -> ExternalData:
    """A word, or a size such as 2GB, which limits each data file."""
    if text.lower() in {beside.value for beside in Beside}:
        return ExternalData(Beside(text.lower()))
    size = _SIZE.fullmatch(text)
    largest = int(float(size[1]) * _UNITS[size[2].lower()]) if size else 0
    if not largest:
        raise OptionError(
            f"--external-data {text} is not a valid value",
            remedy="say auto, always, never, or a size such as 2GB",
        )
    return ExternalData(Beside.ALWAYS, largest)


external_data_flag: Any = click.option(
    "--external-data",
    metavar="auto|always|never|SIZE",
    default="auto",
    show_default=True,
    callback=_external_data,
    help="Store weights in files beside the result: if the model does so, or they exceed 2 GiB (auto); "
    "always, in one file; never; or in files of at most SIZE, such as 2GB.",
)


require_half_flag = switch(
    "--require-half", "Exit with code 1 also if nothing in the result is half; it is written all the same."
)


def json_flag(what: str) -> Flag:
    """The flag `--json FILE`; the command gets the path, or None, as `json_`."""
    return written_file("--json", f"Write the {what} as JSON.", "json_")


def output_flag(default: str) -> Flag:
    """The flag `--output FILE`; `default` is the name that its help gives for a result without one."""
    return click.option(
        "-o",
        "--output",
        type=WRITTEN,
        metavar="FILE",
        help=f"Where to write; {default} beside the model if not given.",
    )
