"""The verdict on a result: which flags bound it, and how it is reached and told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from amp_rewrite.cli.feed_flags import naming_sizes
from amp_rewrite.cli.flag_words import in_flags
from amp_rewrite.cli.grouping import grouped
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.rewrite_and_verify import Outcome
from amp_rewrite.running import metrics, verification
from amp_rewrite.running.blame import blame
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.metrics import Tolerances
from amp_rewrite.running.sessions import Runnable
from amp_rewrite.running.verification import Verdict

_FLAGS = (
    click.option(
        "--tolerance",
        multiple=True,
        metavar="NAME=BOUND",
        help="A bound of the verdict, such as relative_l2=0.02 or top1=0.99; NAME=none takes one away.",
    ),
    click.option("--per-node", is_flag=True, help="Say which nodes add most error, also when all is well."),
)


@dataclass(frozen=True, slots=True)
class Judging:
    """The bounds of a verdict, and whether it goes into single nodes even when it is good."""

    bounds: Tolerances
    per_node: bool

    def judge(
        self, original: Runnable, rewritten: Runnable, data: Data, io: IOTypes = IOTypes.KEEP
    ) -> Verdict:
        """The verdict on all samples.

        Raises MissingPackageError, ModelError and FeedError when the models cannot be run.
        """
        with naming_sizes(original, data):
            samples = feeds.feeds(original, data)
            verdict = verification.verify(
                original, rewritten, samples, self.bounds, io=io, inputs=feeds.input_source(data)
            )
        return replace(verdict, signature=tuple(map(in_flags, verdict.signature)))

    def with_blame(self, verdict: Verdict, original: Runnable, rewritten: Runnable, data: Data) -> Verdict:
        """The verdict, with the blame of the first sample where it is asked for or an output is too far off.

        Raises what `judge` does, and OutputError as `blame` does.
        """
        if not verdict.outputs or not (self.per_node or verdict.is_far):
            return verdict
        first = next(iter(feeds.feeds(original, data)))
        return replace(verdict, blame=blame(original, rewritten, first))

    def without_unasked_blame(self, proof: Outcome) -> Outcome:
        """The proof as it is told: where no output is too far off, nodes are named only on request."""
        verdict = proof.verification
        if self.per_node or not isinstance(verdict, Verdict) or verdict.is_far:
            return proof
        return replace(proof, verification=replace(verdict, blame=None))


def _judging(flags: Mapping[str, Any]) -> Judging:
    return Judging(metrics.parse_tolerances(tuple(flags["tolerance"])), flags["per_node"])


judging_flags = grouped(_FLAGS, ("tolerance", "per_node"), "judging", _judging)
"""Adds the flags of this module to a command; it gets them as `Judging` in `judging`."""
