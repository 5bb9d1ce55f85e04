"""Baselines: the coverage in a committed file that later ones are compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.coverage.rules import Baseline
from amp_rewrite.errors import OptionError
from amp_rewrite.files import reading
from amp_rewrite.model import writing

_UPDATE = "write it with `baselines.save`"


def load(path: Path) -> Baseline:
    """Reads a file that `save`, or `--json`, wrote. Raises OptionError for any other."""
    try:
        content = json.loads(reading.read(path).decode())
    except FileNotFoundError as error:
        raise OptionError("there is no such baseline", where=path, remedy=_UPDATE) from error
    except OSError as error:
        raise OptionError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise OptionError(f"is not JSON: {error}", where=path, remedy=_UPDATE) from error
    try:
        return _baseline(path, content)
    except _NoCoverageError as error:
        raise OptionError(f"is not a coverage baseline ({error})", where=path, remedy=_UPDATE) from error


class _NoCoverageError(Exception):
    """What is missing or invalid in a baseline."""


def _baseline(path: Path, content: Any) -> Baseline:
    operators = {name: ("operators", name, "nodes", "share") for name in _held(content, ("operators",), dict)}
    return Baseline(
        where=str(path),
        shares=_shares(content, {what: (what, "share") for what in ("flops", "nodes", "weights")}),
        operators=_shares(content, operators),
        dims={name: _size(content, ("dims", name)) for name in _held(content, ("dims",), dict)},
    )


def _shares(content: Any, places: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    """The shares at these paths, without those that are null."""
    found = {name: _held(content, place, (int, float, type(None))) for name, place in places.items()}
    for name, share in found.items():
        if share is not None and not 0 <= share <= 1:
            raise _NoCoverageError(f"{'.'.join(places[name])} is not between 0 and 1")
    return {name: float(share) for name, share in found.items() if share is not None}


def _size(content: Any, place: tuple[str, ...]) -> int:
    size: int = _held(content, place, int)
    if size < 0:
        raise _NoCoverageError(f"{'.'.join(place)} is less than 0")
    return size


def _held(content: Any, place: tuple[str, ...], kind: type | tuple[type, ...]) -> Any:
    """The entry at a path; raises _NoCoverageError where it is missing or of another type."""
    for key in place:
        if not isinstance(content, dict) or key not in content:
            raise _NoCoverageError(f"it has no '{'.'.join(place)}'")
        content = content[key]
    if not isinstance(content, kind) or isinstance(content, bool):
        raise _NoCoverageError(f"{'.'.join(place)} is of the wrong type")
    return content


def lacking(coverage: Coverage, baseline: Baseline) -> tuple[str, ...]:
    """The operators of a baseline that a model lacks, on which nothing is compared."""
    return tuple(name for name in baseline.operators if coverage.row(name) is None)


def save(coverage: Coverage, path: Path) -> None:
    """Writes the numbers that later coverages are compared with; raises OutputError."""
    writing.write_json(coverage.summary(), path)
