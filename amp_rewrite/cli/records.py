"""The flags of inputs, comparisons and printing, which several commands have."""

from __future__ import annotations

import contextlib
import itertools
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from amp_rewrite import many
from amp_rewrite.cli.flags import PATH, Need, Record, flag, written
from amp_rewrite.console import Console
from amp_rewrite.errors import FeedError, ModelError, OptionError
from amp_rewrite.policy.open_sizes import DEFAULT
from amp_rewrite.process import executors
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running import tolerances
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.latency import SECONDS
from amp_rewrite.running.sessions import Libraries
from amp_rewrite.running.tolerances import Metric
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.text import brief
from amp_rewrite.tuning.comparing import Judging

T = TypeVar("T")

SKIP_VERIFY = "--skip verify"
_NOT_COMPARED = (Need(SKIP_VERIFY, "compares nothing"),)
_COMPILED = Need("--provider tensorrt", "runs nothing")
_NOT_RUN = (Need(SKIP_VERIFY, "runs no model"), _COMPILED)
_NOT_CALIBRATED = (Need(SKIP_VERIFY, "runs no model", unless=("--calibrate",)),)
_GIVEN = Need("--data", "supplies the inputs")


def assignments(
    flag: str, texts: Iterable[str], metavar: str, parse: Callable[[str, str], T], what: str, example: str
) -> dict[str, T]:
    """Parse the texts NAME=VALUE of a flag, split at the last =, as a name may have one.

    `parse` takes a name and its value, and raises ValueError for a malformed one. Raises OptionError for
    that, and for a name with two different values (`what`).
    """
    values: dict[str, T] = {}
    for text in texts:
        name, _, word = text.rpartition("=")
        name = name.strip()
        try:
            value = parse(name, word) if name else None
        except ValueError:
            value = None
        if value is None:
            raise OptionError(f"{flag} {text} is not {metavar}", remedy=f"write it as in {flag} {example}")
        if values.setdefault(name, value) != value:
            raise OptionError(f"{flag} gives {name} two {what}", remedy="give it once")
    return values


def quantity(text: str, units: Mapping[str, float]) -> float:
    """Return a number with a unit, such as 2gb, in the base unit; 0 for any other text."""
    match = _QUANTITY.fullmatch(text)
    return float(match[1]) * units.get(match[2], 0) if match else 0.0


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)")


# ---- what is printed


@dataclass(frozen=True)
class Quiet(Record, title="What to print", argument="printing"):
    """How much is printed, on what console."""

    quiet: bool = flag("--quiet", "Print errors only.")

    @property
    def console(self) -> Console:
        """The console for the report."""
        return Console(quiet=self.quiet)


@dataclass(frozen=True)
class Printing(Quiet):
    """How much is printed."""

    verbose: bool = flag(
        "--verbose",
        "Print everything: versions, times, ranges, proofs, all outputs.",
        short="Print everything.",
        needs=(Need("--quiet", "prints errors only"),),
    )


# ---- inputs


_ANY_DATA = (
    "Inputs: an .npz file, a directory of them, or an ONNX test_data_set_* directory. An .npz file has an "
    "array for each input of the model, by its name, as numpy.savez writes it."
)
_NAMED = {"samples": "", "Data.paths": "FILE.npz"}
_DIM = {"Data.dims": "", "Options.dims": "", "dims": ""}


@dataclass(frozen=True)
class SizeFlags(Record, title="Inputs", argument="data"):
    """Inputs whose sizes count; the command gets a `Data`."""

    data: tuple[Path, ...] = flag("--data PATH...", _ANY_DATA, PATH, sets=_NAMED)
    dim: tuple[str, ...] = flag(
        "--dim NAME=SIZE...",
        f"The size of an open dimension, by symbol or as INPUT:AXIS. Others count as {DEFAULT}.",
        short="The size of an open dimension.",
        sets=_DIM,
    )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Any:
        """Return the inputs."""
        return Data(values["data"], dims(values["dim"]))


@dataclass(frozen=True)
class Inputs(SizeFlags):
    """Inputs of runs, given or synthetic; the command gets a `Data`."""

    data: tuple[Path, ...] = flag(
        "--data PATH...",
        f"{_ANY_DATA} If not given: those of --calibrate, MODEL.npz beside MODEL.onnx, or synthetic ones.",
        short=".npz files with an array for each input, by its name.",
        kind=PATH,
        needs=_NOT_RUN,
        sets=_NAMED,
    )
    dim: tuple[str, ...] = flag(
        "--dim NAME=SIZE...",
        "The size of an open dimension of synthetic inputs, by symbol or as INPUT:AXIS.",
        short="The size of an open dimension.",
        needs=(_GIVEN,),
        sets=_DIM,
    )
    seed: int = flag(
        "--seed N",
        "The seed of synthetic inputs.",
        click.IntRange(min=0),
        default=0,
        rare=True,
        needs=(*_NOT_RUN, _GIVEN),
    )
    samples: int = flag(
        "--samples N",
        "The number of synthetic samples.",
        click.IntRange(min=1),
        default=1,
        rare=True,
        needs=(*_NOT_RUN, _GIVEN),
    )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Any:
        """Return the inputs: those named, else the samples of --calibrate or beside the model."""
        paths = values["data"] or _default_paths()
        return Data(paths, dims(values["dim"]), values["seed"], values["samples"])


def holds_ranges(path: Path) -> bool:
    """Return whether a value of `--calibrate` names observed ranges, not samples."""
    return path.suffix == ".json"


def _default_paths() -> tuple[Path, ...]:
    """Return the samples of --calibrate, else m.npz beside m.onnx; none if a flag sizes synthetic inputs."""
    context = click.get_current_context(silent=True)
    if context is None or written(context, ("data", "dim", "seed", "samples")):
        return ()
    model = context.params.get("model") or context.params.get("original")
    samples = itertools.filterfalse(holds_ranges, context.params.get("calibrate") or ())
    return tuple(samples) or (_beside(model) if isinstance(model, Path) else ())


def _beside(model: Path) -> tuple[Path, ...]:
    """Return the samples beside a model if they fit it, as no flag names them."""
    paths = tuple(filter(None, [many.data_beside(model)]))
    try:
        for _ in feeds.feeds(model, Data(paths)) if paths else ():
            pass
    except FeedError as error:
        problem = brief(str(error))
        Console(stderr=True).print(
            f"warning  {problem}; nobody named the file, and synthetic inputs are used instead"
        )
        return ()
    except ModelError:  # the command raises it again
        pass
    return paths


def dims(texts: Sequence[str]) -> dict[str, int]:
    """Parse the sizes of `--dim` by name; raise OptionError for a malformed or repeated one."""
    return assignments("--dim", texts, "NAME=SIZE", _size, "sizes", "batch=4")


def _size(_: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


# ---- runs


@dataclass(frozen=True)
class Workers(Record, title="The search", argument="workers"):
    """What runs the samples."""

    executor: str | None = flag(
        "--executor WHERE",
        "What runs the samples: the workers of a Dask scheduler, dask://HOST:PORT.",
        rare=True,
    )

    def opened(self) -> AbstractContextManager[Executor | None]:
        """Open the executor, for use within the context, None without one; raise as `executors.named`."""
        if self.executor is None:
            return contextlib.nullcontext()
        return executors.named(self.executor, "--executor")


@dataclass(frozen=True)
class CalibrationWorkers(Workers, title="Value ranges"):
    """What runs the samples of `--calibrate`, or several models."""

    executor: str | None = flag(
        "--executor WHERE",
        "What runs several models, or the samples of --calibrate: the workers of a Dask scheduler, "
        "dask://HOST:PORT.",
        rare=True,
        needs=(Need("--calibrate"),),
    )


@dataclass(frozen=True)
class Limit(Record, title="The comparison", argument="limit"):
    """The time limit of runs; the command gets a `TimeLimit`."""

    timeout: float | None = flag(
        "--timeout SECONDS",
        "The time limit for running models, all together; none if not given.",
        float,
        rare=True,
        needs=_NOT_CALIBRATED,
    )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Any:
        """Return the time limit; raises OptionError unless it is above zero."""
        return TimeLimit(values["timeout"], "--timeout")


@dataclass(frozen=True)
class Runtime(Record, title="The run", argument="runtime"):
    """Where models run."""

    provider: str | None = flag(
        "--provider",
        "Where the half model runs: on CUDA, or on the CPU, where half is emulated. If not given: CUDA where "
        "it works, else the CPU.",
        short="Where half runs; CUDA where it works, else the CPU.",
        values=("cuda", "cpu"),
        needs=_NOT_COMPARED,
        sets={"device": ""},
    )
    custom_ops: Libraries = flag(
        "--custom-ops LIBRARY...",
        "A shared library with the model's custom operators, for onnxruntime wherever it runs the model.",
        PATH,
        rare=True,
        needs=(*_NOT_CALIBRATED, _COMPILED),
    )


@dataclass(frozen=True)
class BenchFlags(Runtime):
    """Where models are timed, and for how long."""

    provider: str | None = flag(
        "--provider",
        "Where to run; if not given, CUDA where it works, else the CPU. With cuda-tf32, float32 products on "
        "CUDA may use TF32.",
        values=("cuda", "cuda-tf32", "cpu"),
        sets={"device": ""},
    )
    budget: float = flag(
        "--budget SECONDS",
        "How long to measure, in seconds: no round begins after that.",
        click.FloatRange(min=0),
        default=SECONDS,
    )


@dataclass(frozen=True)
class ComparisonFlags(Runtime, title="The comparison", argument="judging"):
    """How two models are compared; the command gets a `Judging`."""

    tolerance: tuple[str, ...] = flag(
        "--tolerance NAME=BOUND...",
        "A bound of the verdict, such as error=0.02 or top1=0.99; NAME=none removes one.",
        short="A bound of the verdict, such as error=0.02.",
        needs=_NOT_COMPARED,
    )
    metric: tuple[str, ...] = flag(
        "--metric [NAME=]MODULE:FUNCTION...",
        "A metric of your own, from the original outputs, the rewritten outputs and the samples. It is "
        "bounded by --tolerance NAME=LEAST:MOST.",
        rare=True,
        needs=_NOT_COMPARED,
    )
    steps: int = flag(
        "--steps N",
        "Sequences of N steps as samples: state outputs go back into the inputs that they pair up with, and "
        "other inputs are those of the next samples.",
        click.IntRange(min=1),
        default=1,
        rare=True,
        needs=_NOT_CALIBRATED,
    )
    show: tuple[str, ...] = flag(
        "--show",
        "Show more:",
        words={"nodes": "those whose rounding adds most to the outputs' error, also for a good verdict"},
        rare=True,
        needs=_NOT_COMPARED,
    )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Any:
        """Return how models are compared; raises OptionError for faulty bounds and metrics."""
        own = cls(**values)
        return Judging(
            *bounds(own.metric, own.tolerance),
            device=own.provider,
            libraries=tuple(dict.fromkeys(path.absolute() for path in own.custom_ops)),
            steps=own.steps,
            per_node="nodes" in own.show,
        )


def bounds(
    metric_texts: Sequence[str], tolerance_texts: Sequence[str]
) -> tuple[tolerances.Tolerances, tuple[Metric, ...]]:
    """Return all bounds and the metrics; raise OptionError for a failed import or a malformed bound."""
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
    own_metrics = tuple(metrics.values())
    return tolerances.parse_tolerances(rest, others=own_metrics), own_metrics


_OTHER_NAME = "name it with --metric NAME=MODULE:FUNCTION"


def _metric(text: str) -> Metric:
    """Import a function from a module on the Python path or in the current folder."""
    name, _, place = text.rpartition("=")
    if not re.fullmatch(r"[^:]+:[^:]+", place):
        raise OptionError(
            f"--metric {text} is not MODULE:FUNCTION", remedy="write it as in --metric wer:rate"
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        function = pkgutil.resolve_name(place)
    except (Exception, SystemExit) as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = "give a function in a module that Python finds, or that is in this folder"
        raise OptionError(f"--metric {text} cannot be imported ({cause})", remedy=remedy) from error
    if not callable(function):
        raise OptionError(f"--metric {text} is not a function", remedy="name a function of the module")
    metric = Metric(function, name or place.rpartition(":")[2].rpartition(".")[2])
    if metric.name in tolerances.NAMES:
        raise OptionError(
            f"the metric {metric.name} has the name of a built-in tolerance", remedy=_OTHER_NAME
        )
    return metric


def _bounded(metric: Metric, bound: str) -> Metric:
    name = metric.name
    if metric.is_bounded:
        raise OptionError(f"the metric {name} has two bounds", remedy="give LEAST:MOST once")
    low, separator, high = bound.partition(":")
    try:
        least, most = (float(side) if side else None for side in (low, high))
        if not separator or (least is None and most is None):
            raise ValueError("it has no bound")
    except ValueError as error:
        remedy = f"write {name}=0.9: for at least 0.9, or {name}=:0.1 for at most 0.1"
        raise OptionError(f"the tolerance {name}={bound} is not LEAST:MOST", remedy=remedy) from error
    return replace(metric, least=least, most=most)


def refuse_failed(verdict: object) -> None:
    """Raise OptionError for a metric that raised or returned no number; called after everything else."""
    for metric in verdict.metrics if isinstance(verdict, Verdict) else ():
        if metric.problem:
            raise OptionError(
                f"the metric {metric.name} {metric.problem}",
                remedy="it gets three lists of dictionaries: original outputs, rewritten outputs, samples",
            )
