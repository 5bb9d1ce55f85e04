"""Libraries of custom operators, which onnxruntime loads into the sessions of a model that has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from amp_rewrite.errors import OptionError

Libraries = tuple[Path, ...]
"""The paths of shared libraries, each with a function RegisterCustomOps."""


def register(options: Any, libraries: Libraries) -> None:
    """Adds libraries to SessionOptions; OptionError for one that onnxruntime refuses."""
    for path in libraries:
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:  # onnxruntime's errors have no common base class
            problem = f"onnxruntime refuses the library {path} of custom operators ({first_line(error)})"
            raise OptionError(problem, remedy=_REMEDY) from error


def first_line(error: Exception) -> str:
    """The first line of an error message, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def refuse_crashing(path: Path) -> None:
    """OptionError for a library whose loading ends the process, as of a file that is cut off; it is loaded
    in one of its own. What fails otherwise is onnxruntime's to say.
    """
    load = [sys.executable, "-I", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(path)]
    if subprocess.run(load, check=False, capture_output=True).returncode < 0:
        problem = f"loading the library {path} of custom operators crashes: it may be damaged"
        raise OptionError(problem, remedy=_REMEDY)


_REMEDY = "give the shared library that exports RegisterCustomOps, built for this machine"
