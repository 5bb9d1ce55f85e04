"""What the library says of fields and arguments, said of flags.

The library does not know who calls it. Where it names a field or an argument that would help, it writes that
in backticks, as in `Options.keep_io`; who calls by the command line reads the flag.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

FLAGS = {
    "Data.dims": "--dim",
    "Data.paths": "--data FILE.npz",
    **{f"OpLists.override({kind})": f"--{kind}" for kind in ("allow", "infer", "clear", "deny")},
    "Options.io=HALF": "--io half",
    "Options.external_data=NEVER": "--external-data never",
    "Options.keep_functions": "--keep-functions",
    "Options.keep_io": "--keep-io",
    "Pins.force_half": "--force-half",
    "Pins.keep_full": "--keep-full",
    "baselines.save": "--update",
    "dims": "--dim",
    "in_place=True": "--in-place",
    "output": "-o",
    "plan_files.dump": "--save-plan",
    "samples": "--data",
}
"""The flag that does what a field or an argument of the library does."""

_IN_BACKTICKS = re.compile("`([^`]+)`")


def in_flags(said: object) -> str:
    """A text, or the line of an error, with flags for the fields that it names; other backticks stay."""
    return _IN_BACKTICKS.sub(lambda match: FLAGS.get(match[1], match[0]), str(said))


def as_argument(path: Path) -> str:
    """A path as a word of a command that can be pasted: none that begins like a flag."""
    name = str(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
