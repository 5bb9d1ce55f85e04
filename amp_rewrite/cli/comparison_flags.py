"""The flags of a comparison (`--tolerance`, `--metric`, `--provider`, `--per-node`), and the comparison."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from amp_rewrite.cli.fields_as_flags import as_argument, in_flags
from amp_rewrite.cli.flag_builders import choice, grouped, number, repeatable, switch
from amp_rewrite.cli.input_flags import custom_ops_flag, naming_sizes
from amp_rewrite.cli.progress import counted, tell
from amp_rewrite.errors import OptionError
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.rewriting.report import SummaryLine
from amp_rewrite.running import emulation, run_arguments, tolerances, verification
from amp_rewrite.running.blame import blame
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data, Trial, of_source, trials
from amp_rewrite.running.sessions import Libraries, Runnable
from amp_rewrite.running.tolerances import Metric, MetricFunction, Tolerances
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.tuning import sensitivity

# The flag `--metric`, and bounds of `--tolerance` for the metrics that it names.

metric_flag = repeatable(
    "--metric",
    "[NAME=]MODULE:FUNCTION",
    "A metric of your own, from the original outputs, the rewritten outputs and the samples; "
    "bounded by --tolerance NAME=LEAST:MOST.",
)


@dataclass(frozen=True, slots=True)
class Judging:
    """The acceptance criteria of a comparison: tolerances of built-in metrics, and user-defined metrics."""

    bounds: Tolerances
    metrics: tuple[Metric, ...]


def read(metric_texts: Sequence[str], tolerance_texts: Sequence[str]) -> Judging:
    """Return the metrics and all bounds; raise OptionError for a failed import or a malformed bound."""
    metrics: dict[str, Metric] = {}
    for metric in map(_metric, metric_texts):
        if metric.name in metrics:
            raise OptionError(f"two metrics are called {metric.name}", remedy=_OTHER_NAME)
        metrics[metric.name] = metric
    own = [text for text in tolerance_texts if text.partition("=")[0] in metrics]
    for text in own:
        name, _, bound = text.partition("=")
        metrics[name] = _bounded(metrics[name], bound)
    rest = tuple(text for text in tolerance_texts if text not in own)
    return Judging(tolerances.parse_tolerances(rest, others=tuple(metrics.values())), tuple(metrics.values()))


_OTHER_NAME = "name it with --metric NAME=MODULE:FUNCTION"


def _metric(text: str) -> Metric:
    name, _, place = text.rpartition("=")
    module, _, function = place.partition(":")
    if not module or not function:
        raise OptionError(
            f"--metric {text} is not MODULE:FUNCTION", remedy="write it as in --metric wer:rate"
        )
    metric = Metric(_imported(text, module, function), name or function.rpartition(".")[2])
    if metric.name in tolerances.NAMES:
        raise OptionError(
            f"the metric {metric.name} has the name of a built-in tolerance", remedy=_OTHER_NAME
        )
    return metric


def _imported(text: str, module: str, function: str) -> MetricFunction:
    """Import the function from a module on the Python path or in the current folder."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        metric = operator.attrgetter(function)(importlib.import_module(module))
    except (Exception, SystemExit) as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = "give a function in a module that Python finds, or that is in this folder"
        raise OptionError(f"--metric {text} cannot be imported ({cause})", remedy=remedy) from error
    if not callable(metric):
        raise OptionError(f"--metric {text} is not a function", remedy="name a function of the module")
    return metric


def _bounded(metric: Metric, bound: str) -> Metric:
    if metric.least is not None or metric.most is not None:
        raise OptionError(f"the metric {metric.name} has two bounds", remedy="give LEAST:MOST once")
    low, separator, high = bound.partition(":")
    try:
        least, most = (float(side) if side else None for side in (low, high))
    except ValueError as error:
        raise _no_bound(metric, bound) from error
    if not separator or (least is None and most is None):
        raise _no_bound(metric, bound)
    return replace(metric, least=least, most=most)


def _no_bound(metric: Metric, bound: str) -> OptionError:
    name = metric.name
    return OptionError(
        f"the tolerance {name}={bound} is not LEAST:MOST",
        remedy=f"write {name}=0.9: for at least 0.9, or {name}=:0.1 for at most 0.1",
    )


def refuse_failed(verdict: object) -> None:
    """Raise OptionError for a metric that raised or returned no number; called after everything else."""
    for metric in verdict.metrics if isinstance(verdict, Verdict) else ():
        if metric.problem:
            raise OptionError(
                f"the metric {metric.name} {metric.problem}",
                remedy="it gets three lists of dictionaries: original outputs, rewritten outputs, samples",
            )


_FLAGS = (
    repeatable(
        "--tolerance",
        "NAME=BOUND",
        "A bound of the verdict, such as error=0.02 or top1=0.99; NAME=none removes one.",
    ),
    metric_flag,
    choice(
        "--provider",
        ["cuda", "cpu"],
        "Where the half model runs: on CUDA, or on the CPU (half is emulated). If not given: CUDA where it "
        "works, else the CPU.",
    ),
    switch(
        "--per-node",
        "Name the nodes whose rounding adds most to the outputs' error, also for a good verdict.",
    ),
    number(
        "--steps",
        click.IntRange(min=1),
        "Sequences of N steps as samples: state outputs go back into the inputs that they pair up with, and "
        "other inputs are those of the next samples.",
        1,
    ),
    custom_ops_flag,
)


@dataclass(frozen=True, slots=True)
class ComparisonFlags:
    """The settings of a comparison: criteria, provider, and per-node blame even for a good verdict.

    `libraries` implement the custom operators, and `steps` are those of a sequence.
    """

    judging: Judging
    provider: str | None
    per_node: bool
    libraries: Libraries = ()
    steps: int = 1

    def refuse_missing(self) -> None:
        """Raise OptionError or MissingPackageError, before any work, for a faulty provider or library."""
        if self.provider is not None:
            run_arguments.device(self.provider)
        run_arguments.libraries(self.libraries)

    def verdict(
        self,
        original: Runnable,
        rewritten: Runnable,
        data: Data,
        io: IOTypes = IOTypes.KEEP,
        progress: Progress | None = None,
    ) -> Verdict:
        """Return the verdict on all samples; `progress` shows the steps, and how many samples are done.

        Raises MissingPackageError, ModelError and FeedError when the models cannot be run.
        """
        with naming_sizes(original, data):
            verdict = verification.verify_trials(
                original,
                rewritten,
                _with_progress(trials(original, data), data, progress),
                self.judging.bounds,
                self.judging.metrics,
                io=io,
                device=self.provider,
                libraries=self.libraries,
                on_step=lambda step: tell(progress, f"verify: {step}"),
            )
        return replace(verdict, signature=tuple(map(in_flags, verdict.signature)))

    def with_blame(
        self,
        verdict: Verdict,
        original: Runnable,
        rewritten: Runnable,
        data: Data,
    ) -> Verdict:
        """Attach the blame on the first sample if it is requested or an output exceeds its tolerance, with
        nodes ranked by the error that they add to the outputs.

        Raises as `verdict` does.
        """
        if verdict.blame is not None or not verdict.outputs or not (self.per_node or verdict.is_far):
            return verdict
        single = replace(of_source(data, verdict.inputs), steps=1)
        first = next(iter(feeds.feeds(original, single)))
        blamed = blame(
            original,
            rewritten,
            first,
            effects=sensitivity.by_node(original, rewritten, first, self.libraries),
            device=verdict.witness,
            libraries=self.libraries,
        )
        return replace(verdict, blame=blamed)


def _with_progress(all_trials: Sequence[Trial], data: Data, progress: Progress | None) -> tuple[Trial, ...]:
    totals = (-(-len(trial.source.files) // data.steps) or data.samples for trial in all_trials)
    return tuple(
        replace(trial, samples=counted(progress, trial.samples, total))
        for trial, total in zip(all_trials, totals, strict=True)
    )


comparison_flags = grouped(
    _FLAGS,
    "comparing",
    lambda flags: ComparisonFlags(
        read(flags["metric"], flags["tolerance"]),
        flags["provider"],
        flags["per_node"],
        libraries=flags["custom_ops"],
        steps=flags["steps"],
    ),
)
"""A decorator that adds these flags to a command and passes them as `ComparisonFlags` in `comparing`."""


def doubts(command: str, original: Path, rewritten: Path) -> Iterator[SummaryLine]:
    """Yield a hint that the two may be the wrong models: neither has half, or only the first, which suggests
    the wrong order.
    """
    half = emulation.half_of(original)
    if emulation.half_of(rewritten) is not None:
        return
    if half is None:
        yield SummaryLine("note", f"nothing in {rewritten} is half, nor in {original}")
        return
    line = f"amp-rewrite {command} {as_argument(rewritten)} {as_argument(original)}"
    hint = f"{original} has {half.name} and {rewritten} has none: the original comes first ({line})"
    yield SummaryLine("swapped?", hint, is_whole=True)
