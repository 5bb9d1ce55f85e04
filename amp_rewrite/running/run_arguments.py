"""Validation and conversion of models, samples and devices for runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import AmpRewriteError, FeedError, ModelError, OptionError
from amp_rewrite.model import loading, serialization
from amp_rewrite.running import sessions
from amp_rewrite.running.sequences import Steps, sequences
from amp_rewrite.running.sessions import Device, Feeds, Libraries, Runnable

Samples = Feeds | Iterable[Feeds]
"""Mappings from input names to arrays; a single one need not be in a list."""

_ARRAYS = 'give arrays by the names of the inputs, as in [{"image": array}]'


def model(name: str, source: loading.ModelSource) -> Runnable:
    """Return a model of any kind that `rewrite` takes in a runnable form; raise ModelError if invalid."""
    if isinstance(source, onnx.ModelProto):
        return loading.refuse_too_large(source)
    if arguments.is_path(source):
        path = Path(source)
        if flaw := arguments.flaw_of(path):
            raise ModelError(f"{arguments.describe(str(path))} {flaw}", remedy="check the path")
        with loading.open_file(path):
            return path
    if isinstance(source, (bytes, ir.Model)) or loading.is_surgeon(source):
        return loading.refuse_too_large(serialization.to_proto(loading.load(source)))
    raise ModelError(
        f"{arguments.describe(source)} is not a model", where=name, remedy=loading.what_to_give(source)
    )


def samples(value: Samples, source: loading.ModelSource = b"", steps: int = 1) -> Iterator[Feeds]:
    """Yield the samples, each validated on request, or with `steps` sequences of them for a model; raise
    FeedError for an invalid one, or if the iterable raises, and OptionError for a model without state.
    """
    if arguments.whole("steps", steps, least=1) > 1:
        return sequences(loading.load(source).model, samples(value), steps, steps)
    several: Any = (value,) if isinstance(value, Mapping) else value
    # arrays and strings are iterable, but do not hold samples
    if not isinstance(several, Iterable) or isinstance(several, (str, bytes)) or hasattr(several, "dtype"):
        raise FeedError(f"{arguments.describe(value)} is not a sample", where="samples", remedy=_ARRAYS)
    return (_sample(at, sample) for at, sample in enumerate(_draw(several)))


def _draw(several: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples; an error of the iterable becomes a FeedError, unless it is one of ours."""
    count = 0
    try:
        for sample in several:
            yield sample
            count += 1
    except AmpRewriteError:
        raise
    except Exception as error:  # the caller's code may raise anything
        problem = f"{type(error).__name__} was raised in its place ({error})"
        raise FeedError(problem, where=f"samples[{count}]", remedy="mend the iterable") from error


def _sample(at: int, value: object) -> Feeds:
    where = f"samples[{at}]"
    if isinstance(value, Steps):
        return value
    if not isinstance(value, Mapping):
        raise FeedError(f"{arguments.describe(value)} is not a sample", where=where, remedy=_ARRAYS)
    arrays = dict(value)  # an npz file reads an array at each access
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise FeedError(
                f"{arguments.describe(name)} is not the name of an input", where=where, remedy=_ARRAYS
            )
        if _has_mask_or_fields(array):
            raise FeedError(
                "is an array with a mask or with fields, which are not supported",
                where=f'{where}["{name}"]',
                remedy="give a plain array",
            )
    return arrays


def _has_mask_or_fields(array: Any) -> bool:
    """Whether an array has a mask or fields, which a run would ignore."""
    is_plain = type(array) is np.ndarray  # the usual case, without importing numpy.ma
    has_mask = not is_plain and isinstance(array, np.ma.MaskedArray)
    return has_mask or bool(getattr(getattr(array, "dtype", None), "names", None))


def libraries(paths: PathLike | Iterable[PathLike]) -> Libraries:
    """Return absolute paths of custom operator libraries, valid in workers too, after loading each once.

    Raises OptionError for one that is missing or that onnxruntime refuses, and MissingPackageError without
    onnxruntime.
    """
    files = tuple(dict.fromkeys(path.absolute() for path in arguments.paths("custom_ops", paths)))
    for path in files:
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            raise OptionError(f"the library {path} of custom operators {problem}", remedy="check the path")
        sessions.refuse_crashing(path)
    if files:
        sessions.session_options(files)
    return files


def device(value: Device | str | None) -> Device:
    """Return the device, the best one for None.

    Raises OptionError for one that is not known or does not work here, and MissingPackageError without
    onnxruntime.
    """
    if value is None:
        return sessions.best_device()
    target = arguments.choice("device", value, Device)
    if target is Device.CUDA and sessions.best_device() is not Device.CUDA:
        raise OptionError("CUDA does not work here", remedy=_OTHER_DEVICE)
    return target


_OTHER_DEVICE = "give `device=CPU`, or a machine with CUDA and onnxruntime-gpu in place of onnxruntime"
