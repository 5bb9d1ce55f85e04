"""A coverage as a committed file that the next one is held against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp_rewrite import reading, writing
from amp_rewrite.errors import OptionError
from amp_rewrite.reporting.coverage.counts import Coverage
from amp_rewrite.reporting.coverage.rules import Baseline

_UPDATE = "write it with `baselines.save`"


def load(path: Path) -> Baseline:
    """The baseline of a file that `save`, or `--json`, wrote. Raises OptionError for any other."""
    try:
        content = json.loads(reading.read(path).decode())
    except FileNotFoundError as error:
        raise OptionError("there is no such baseline", where=path, remedy=_UPDATE) from error
    except OSError as error:
        raise OptionError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except (ValueError, RecursionError) as error:  # no text, no JSON, or brackets without end
        raise OptionError(f"is not JSON: {error}", where=path, remedy=_UPDATE) from error
    try:
        return _baseline(path, content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise OptionError("is no coverage", where=path, remedy=_UPDATE) from error


def _baseline(path: Path, content: Mapping[str, Any]) -> Baseline:
    shares = {what: content[what]["share"] for what in ("flops", "nodes", "weights")}
    operators = {name: row["nodes"]["share"] for name, row in content["operators"].items()}
    return Baseline(
        where=str(path),
        shares={what: float(share) for what, share in shares.items() if share is not None},
        operators={name: float(share) for name, share in operators.items() if share is not None},
        dims={name: int(size) for name, size in content["dims"].items()},
    )


def save(coverage: Coverage, path: Path) -> None:
    """Writes the numbers that the next coverage is held against; raises OutputError."""
    writing.write_json(coverage.summary(), path)
