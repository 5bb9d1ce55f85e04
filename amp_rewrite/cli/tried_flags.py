"""Other flags for the main job, tried where its comparison failed."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from amp_rewrite import mending
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.mending import Attempted
from amp_rewrite.policy.options import Options
from amp_rewrite.rewrite_and_verify import Outcome
from amp_rewrite.running.verdict import Verdict

LARGE = 1 << 30
"""The bytes of a model above which the main job tries nothing else."""

Again = Callable[[Options, Path], Outcome]
"""Does the main job with other options, and writes its result to another place."""


def with_tried(outcome: Outcome, options: Options, again: Again | None) -> Outcome:
    """The outcome with what was tried where its verdict fails.

    Without `again`, where pins are refused beside a saved plan or no search found any, it suggests none.
    """
    verdict = outcome.verification
    if not (isinstance(verdict, Verdict) and verdict.is_far and (verdict.blame or verdict.misfits)):
        return outcome
    if again is None:
        blame = replace(verdict.blame, keep_full=()) if verdict.blame else None
        return replace(outcome, verification=replace(verdict, blame=blame))
    if outcome.result.report.size_before > LARGE:
        return outcome
    with tempfile.TemporaryDirectory() as folder:
        attempt = functools.partial(_attempt, again, Path(folder) / "tried.onnx")
        found = mending.tried(verdict, options, attempt)
    return replace(outcome, verification=replace(verdict, tried=found))


def _attempt(again: Again, output: Path, options: Options) -> Attempted | None:
    try:
        found = again(options, output)
    except AmpRewriteError:  # a pin of the user's says otherwise, or the time is over
        return None
    verdict = found.verification
    return Attempted(verdict, found.result.report.nodes) if isinstance(verdict, Verdict) else None
