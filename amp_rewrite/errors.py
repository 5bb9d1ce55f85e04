"""The errors that a user can fix, as one tree:

    AmpRewriteError
    ├── ModelError            the model cannot be read, or is not valid
    │   └── SpecError         the model is no train step, or not clear as one
    ├── ListError             an operator list is wrong; knows file and line
    ├── OptionError           the options contradict each other or name what is not there
    │   └── PinError          pins decide nothing; knows which
    ├── PlanError             a saved plan is unreadable or belongs to another model
    ├── FeedError             the inputs given for a run do not fit the model
    │   └── RunError          onnxruntime's run on them failed
    ├── TimeLimitError        running models took longer than allowed
    ├── ResourceError         the system gives no memory or no thread for a run
    ├── WorkerError           a worker of an executor ended before its work was done
    ├── OutputError           the result cannot be written
    ├── CertificateError      the result is not proved to be the model, and is not written
    ├── EngineError           the compiler of a target refuses the result, which is not written
    └── MissingPackageError   an optional package is needed and not installed

Each prints as one line: place, problem and remedy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amp_rewrite.text import brief, shortened

TRACEBACK = "AMP_REWRITE_TRACEBACK"
"""The environment variable that makes the command print tracebacks."""

EXPORT_AGAIN = "export or download it again"
"""The remedy for a damaged model."""

READABLE = "give a file that you may read"
"""The remedy where the system denies access to a file."""


_LONGEST = 1000
"""The most characters of an error; of a longer one, the beginning and the end are kept."""


class AmpRewriteError(Exception):
    """An error: the `problem`, its place (`where`, may be empty) and a `remedy`.

    `str` gives one line, escaped for printing; the three parts are not escaped.

    Examples:
        >>> from amp_rewrite import Options
        >>> from amp_rewrite.errors import AmpRewriteError
        >>> try:
        ...     Options(half="float8")
        ... except AmpRewriteError as error:
        ...     print(error.problem)
        'float8' is not one of float16, bfloat16
    """

    def __init__(self, problem: str, *, where: str | Path = "", remedy: str = "") -> None:
        self.problem = problem
        self.where = str(where)
        self.remedy = remedy
        super().__init__(problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (type(self), vars(self))

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        help_ = f"; {self.remedy}" if self.remedy else ""
        return shortened(brief(f"{place}{self.problem}{help_}"), _LONGEST)


def _copied(kind: type[AmpRewriteError], fields: dict[str, Any]) -> AmpRewriteError:
    """Return a copy of an error from another process."""
    error = kind.__new__(kind, fields["problem"])
    vars(error).update(fields)
    return error


class ModelError(AmpRewriteError):
    """The model cannot be read, or is not valid.

    Examples:
        >>> from amp_rewrite import rewrite
        >>> rewrite("missing.onnx")
        Traceback (most recent call last):
            ...
        amp_rewrite.errors.ModelError: missing.onnx: there is no such file; check the path
    """


class SpecError(ModelError):
    """The model is no train step, or its loss, seed or state has no usual name.

    Examples:
        >>> from amp_rewrite.demo import network
        >>> from amp_rewrite.training import find_spec
        >>> find_spec(network())
        Traceback (most recent call last):
            ...
        amp_rewrite.errors.SpecError: no train step: no output is a floating-point scalar ...
    """


class ListError(AmpRewriteError):
    """An operator list is wrong. `line` counts from 1; 0 means the list as a whole.

    Examples:
        >>> from amp_rewrite import Options
        >>> Options(lists="defaults")
        Traceback (most recent call last):
            ...
        amp_rewrite.errors.ListError: defaults: there is no such list; did you mean ...
    """

    def __init__(self, problem: str, *, file: str | Path = "", line: int = 0, remedy: str = "") -> None:
        self.file = str(file)
        self.line = line
        where = f"{file}:{line}" if file and line else str(file)
        super().__init__(problem, where=where, remedy=remedy)


class OptionError(AmpRewriteError):
    """Options that contradict each other, or that name something the model lacks.

    Examples:
        >>> from amp_rewrite import Pins, Options, rewrite
        >>> from amp_rewrite.demo import network
        >>> rewrite(network(), Options(pins=Pins(keep_full="rms_div", force_half="rms_div")))
        Traceback (most recent call last):
            ...
        amp_rewrite.errors.OptionError: `Pins.keep_full` rms_div and `Pins.force_half` rms_div both ...
    """


class PinError(OptionError):
    """Pins that match no node that computes in float32, or that force half where nothing can be half:
    `patterns`, all of one kind.

    Examples:
        >>> from amp_rewrite import Options, Pins, rewrite
        >>> from amp_rewrite.demo import network
        >>> from amp_rewrite.errors import PinError
        >>> try:
        ...     rewrite(network(), Options(pins=Pins(keep_full=["encoder", "rms_div"], force_half="head")))
        ... except PinError as error:
        ...     print(error.patterns)
        ('encoder', 'head')
    """

    def __init__(self, problem: str, patterns: Iterable[str], *, remedy: str = "") -> None:
        self.patterns = tuple(patterns)
        super().__init__(problem, remedy=remedy)


class PlanError(AmpRewriteError):
    """A saved plan that cannot be read, or that was made for another model.

    Examples:
        >>> from amp_rewrite import load_plan
        >>> load_plan("missing.json")
        Traceback (most recent call last):
            ...
        amp_rewrite.errors.PlanError: missing.json: cannot be read (No such file or ...
    """


class FeedError(AmpRewriteError):
    """Inputs that do not fit the model that is to run.

    Examples:
        >>> from amp_rewrite import observe
        >>> from amp_rewrite.demo import network
        >>> observe(network(), {"picture": 0})
        Traceback (most recent call last):
            ...
        amp_rewrite.errors.FeedError: samples[0]: the model has no input 'picture'; it has image
    """


class RunError(FeedError):
    """A run that failed on inputs whose names, types and shapes fit the model.

    Examples:
        >>> from amp_rewrite.errors import RunError
        >>> str(RunError("the run failed (out of memory)", where="samples[0]"))
        'samples[0]: the run failed (out of memory)'
    """


class TimeLimitError(AmpRewriteError):
    """Running the models took longer than the user allowed.

    Examples:
        >>> from amp_rewrite.errors import TimeLimitError
        >>> str(TimeLimitError("running took more than 5 s", remedy="give more time"))
        'running took more than 5 s; give more time'
    """


class ResourceError(AmpRewriteError):
    """The system gives no more memory, or no further thread, to a run of a model.

    Examples:
        >>> from amp_rewrite.errors import ResourceError
        >>> str(ResourceError("no further thread can be started"))
        'no further thread can be started; allow this process more memory and more threads (ulimit -v, ...'
    """

    def __init__(self, problem: str, *, where: str | Path = "") -> None:
        super().__init__(problem, where=where, remedy=_MORE)


_MORE = "allow this process more memory and more threads (ulimit -v, ulimit -u), or give smaller inputs"


class WorkerError(AmpRewriteError):
    """A worker of an executor ended, or could not do its work, so that its result is lost.

    Examples:
        >>> from amp_rewrite.errors import WorkerError
        >>> str(WorkerError("a worker ended", remedy="start it again"))
        'a worker ended; start it again'
    """


class OutputError(AmpRewriteError):
    """The result cannot be written; an earlier file at its path is unchanged.

    Examples:
        >>> from amp_rewrite import Observed
        >>> Observed("of a model", 64, {}).save("/dev/null/seen.json")
        Traceback (most recent call last):
            ...
        amp_rewrite.errors.OutputError: /dev/null/seen.json: cannot be written: there is no folder ...
    """


class CertificateError(AmpRewriteError):
    """The result of a rewrite is not proved equal to its model: a fault of amp-rewrite's own.

    Examples:
        >>> from amp_rewrite.errors import CertificateError
        >>> str(CertificateError("not proved equal to the model"))
        'not proved equal to the model'
    """


class EngineError(AmpRewriteError):
    """The compiler of a target refuses a result, which is then not written.

    Examples:
        >>> from amp_rewrite.errors import EngineError
        >>> str(EngineError("TensorRT refuses the result", remedy="keep the node in float32"))
        'TensorRT refuses the result; keep the node in float32'
    """


class MissingPackageError(AmpRewriteError):
    """An optional package is needed: `package`, which is of the extra `extra` of amp-rewrite.

    Examples:
        >>> from amp_rewrite.errors import MissingPackageError
        >>> str(MissingPackageError("onnxruntime", extra="cpu", purpose="a comparison"))
        'a comparison needs the package onnxruntime; install it with: pip install onnxruntime'
    """

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(
            f"{purpose} needs the package {package}",
            remedy=f"install it with: pip install {package}",
        )
