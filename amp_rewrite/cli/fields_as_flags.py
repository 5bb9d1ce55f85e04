"""Translation of library messages for the command line: `Options.keep_io` in backticks becomes its flag.

The library itself does not depend on the command line.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

FLAGS = {
    "custom_ops": "--custom-ops",
    "device=CPU": "--provider cpu",
    "Data.dims": "--dim",
    "Data.paths": "--data FILE.npz",
    **{f"OpLists.override({kind})": f"--{kind}" for kind in ("allow", "deny")},
    **{f"OpLists.override({kind})": f"--list {kind}=" for kind in ("infer", "clear")},
    "Options.device": "--device",
    "Options.dims": "--dim",
    "Options.io=HALF": "--io half",
    "Options.io=STATE": "--io state",
    "Options.external_data=NEVER": "--external-data never",
    "Options.certify=False": "--skip certify",
    "Options.fold": "--skip fold",
    "Options.free": "--skip bounds",
    "Options.gate": "--gate",
    "Options.half": "--to",
    "Options.lists": "--list",
    "Options.keep_opset": "--opset keep",
    "Options.op_types": "--op-type",
    "Options.opset": "--opset",
    "Options.keep_functions": "--skip inline",
    "Options.keep_io": "--keep-io",
    "Options.keep_overridable": "--skip defaults",
    "Options.ranges": "--range",
    "Options.rescale": "--skip rescale",
    "Options.storage_only": "--storage-only",
    "Pins.force_half": "--force-half",
    "Pins.keep_full": "--keep-full",
    "Pins.only": "--only",
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
"""The flag for each field or argument of the library."""

_IN_BACKTICKS = re.compile("`([^`]+)`")


def in_flags(message: object) -> str:
    """Replace the fields in a message or error by flags; other backticks stay."""
    return _IN_BACKTICKS.sub(lambda match: FLAGS.get(match[1], match[0]), str(message))


def as_argument(path: Path) -> str:
    """Quote a path for a shell so that it is not mistaken for a flag."""
    name = str(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
