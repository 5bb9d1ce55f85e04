"""Libraries of custom operators, which onnxruntime loads into the sessions of a model that has them."""

from __future__ import annotations

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
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            problem = f"onnxruntime refuses the library {path} of custom operators ({first})"
            raise OptionError(problem, remedy=_REMEDY) from error


_REMEDY = "give the shared library that exports RegisterCustomOps, built for this machine"
