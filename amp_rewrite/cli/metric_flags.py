"""The flag `--metric`, and bounds of `--tolerance` for the metrics that it names."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from amp_rewrite.cli.flag_builders import repeatable
from amp_rewrite.errors import OptionError
from amp_rewrite.running import tolerances
from amp_rewrite.running.tolerances import Metric, MetricFunction, Tolerances
from amp_rewrite.running.verdict import Verdict

metric_flag = repeatable(
    "--metric",
    "[NAME=]MODULE:FUNCTION",
    "A metric of your own, from the original outputs, the rewritten outputs and the samples; "
    "bounded by --tolerance NAME=LEAST:MOST.",
)


@dataclass(frozen=True, slots=True)
class Judging:
    """What judges a comparison: bounds of the built-in metrics, and metrics of the user's own with theirs."""

    bounds: Tolerances
    metrics: tuple[Metric, ...]


def read(metric_texts: Sequence[str], tolerance_texts: Sequence[str]) -> Judging:
    """The metrics and all bounds; OptionError for what cannot be imported or is no bound."""
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
    """The function, from a module on the Python path or in the current folder."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = operator.attrgetter(function)(importlib.import_module(module))
    except (Exception, SystemExit) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = "give a function in a module that Python finds, or that is in this folder"
        raise OptionError(f"--metric {text} cannot be imported ({said})", remedy=remedy) from error
    if not callable(found):
        raise OptionError(f"--metric {text} is not a function", remedy="name a function of the module")
    return found


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
    """OptionError for a metric that raised or returned no number; called when all else is done."""
    for metric in verdict.metrics if isinstance(verdict, Verdict) else ():
        if metric.problem:
            raise OptionError(
                f"the metric {metric.name} {metric.problem}",
                remedy="it gets three lists of dictionaries: original outputs, rewritten outputs, samples",
            )
