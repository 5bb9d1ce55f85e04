"""Translation of library messages for the command line: `Options.keep_io` in backticks becomes its flag.

The library itself does not depend on the command line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_OTHERS = {
    "custom_ops": "--custom-ops",
    "verify=False": "--skip verify",
    "device=CPU": "--provider cpu",
    "Data.dims": "--dim",
    "Data.paths": "--data FILE.npz",
    **{f"OpLists.override({kind})": f"--{kind}" for kind in ("allow", "deny")},
    **{f"OpLists.override({kind})": f"--list {kind}=" for kind in ("infer", "clear")},
    "Options.dims": "--dim",
    "Options.io=HALF": "--io half",
    "Options.io=STATE": "--io state",
    "Options.external_data=NEVER": "--external-data never",
    "Options.certify=False": "--skip certify",
    "Options.keep_opset": "--opset keep",
    "Observed.save": "--save-observed",
    "dims": "--dim",
    "in_place=True": "--in-place",
    "force=True": "--force",
    "loss": "--loss",
    "output": "-o",
    "Analysis.save_plan": "--save-plan",
    "coverage_rules.save_baseline": "--report baseline=FILE",
    "samples": "--data",
    "steps": "--steps",
    "skip_nonfinite": "--loss-scale skip-nonfinite",
    "training.insert_loss_scale": "`amp-rewrite train ORIGINAL --to float32 --loss-scale ...`",
}
"""The flags for arguments, and for fields with a value."""


@cache
def flags() -> Mapping[str, str]:
    """Return the flag for each field or argument of the library."""
    from amp_rewrite.policy.options import DECLARED  # noqa: PLC0415 - the list of commands imports no library

    declared = {f"Options.{name}": field.flags[0].name for name, field in DECLARED.items() if field.flags}
    skipped = {f"Options.{name}": f"--skip {field.step}" for name, field in DECLARED.items() if field.step}
    pins = {f"Pins.{flag.argument}": flag.name for flag in DECLARED["pins"].flags}
    return {**declared, **skipped, **pins, **_OTHERS}


_IN_BACKTICKS = re.compile("`([^`]+)`")


def in_flags(message: object) -> str:
    """Replace the fields in a message or error by flags; other backticks stay."""
    return _IN_BACKTICKS.sub(lambda match: _flag(match[1]) or match[0], str(message))


def _flag(field: str) -> str | None:
    size = re.fullmatch(r'Data\.dims\["(.*)"\]', field)
    return f"--dim {shlex.quote(size[1])}=SIZE" if size else flags().get(field)


def as_argument(path: Path) -> str:
    """Quote a path for a shell so that it is not mistaken for a flag."""
    name = str(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
