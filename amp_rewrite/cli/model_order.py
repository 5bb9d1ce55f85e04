"""Whether two models that were named are in the order that a command wants: the original comes first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.rewriting.report import SummaryLine
from amp_rewrite.running import sessions


def swapped(command: str, original: Path, rewritten: Path) -> Iterator[SummaryLine]:
    """That the first model is the rewritten one, as it seems, where the second is not."""
    half = sessions.half_of(original)
    if half is None or sessions.half_of(rewritten) is not None:
        return
    line = f"amp-rewrite {command} {as_argument(rewritten)} {as_argument(original)}"
    told = f"{original} has {half.name} and {rewritten} has none: the original comes first ({line})"
    yield SummaryLine("swapped?", told, is_whole=True)
