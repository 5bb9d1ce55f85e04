"""What a caller gives to be run, models and samples -> what the runs here take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.errors import FeedError, ModelError
from amp_rewrite.model import loading, writing
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device, Feeds, Runnable

Samples = Feeds | Iterable[Feeds]
"""Samples, each a mapping from input names to arrays; one alone need not be in a list."""

_ARRAYS = 'give arrays by the names of the inputs, as in [{"image": array}]'


def model(name: str, given: loading.ModelSource) -> Runnable:
    """A model of any kind that `rewrite` takes, as one that can be run; ModelError for what is none."""
    if isinstance(given, onnx.ModelProto):
        return given
    if arguments.is_path(given):
        return _file(Path(given))
    if isinstance(given, (bytes, ir.Model)) or loading.is_surgeon(given):
        return writing.to_proto(loading.load(given))
    raise ModelError(f"{arguments.shown(given)} is not a model", where=name, remedy=_MODELS)


_MODELS = "give a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph"


def _file(path: Path) -> Path:
    if flaw := arguments.flaw_of(path):
        raise ModelError(f"{arguments.shown(str(path))} {flaw}", remedy="check the path")
    with loading.open_file(path):
        return path


def samples(given: Samples) -> Iterator[Feeds]:
    """Samples one after the other, each looked at when it is asked for; FeedError for what is none."""
    several: Any = (given,) if isinstance(given, Mapping) else given
    # an array can be iterated over, and so can a text: neither holds samples
    if not isinstance(several, Iterable) or isinstance(several, (str, bytes)) or hasattr(several, "dtype"):
        raise FeedError(f"{arguments.shown(given)} is not a sample", where="samples", remedy=_ARRAYS)
    return (_sample(at, sample) for at, sample in enumerate(several))


def _sample(at: int, given: object) -> Feeds:
    where = f"samples[{at}]"
    if not isinstance(given, Mapping):
        raise FeedError(f"{arguments.shown(given)} is not a sample", where=where, remedy=_ARRAYS)
    held = dict(given)  # once: an npz file reads an array whenever it is asked for it
    for name, array in held.items():
        if not isinstance(name, str):
            raise FeedError(
                f"{arguments.shown(name)} is not the name of an input", where=where, remedy=_ARRAYS
            )
        if _hides_something(array):
            raise FeedError(
                "is an array with a mask or with fields, which no model takes",
                where=f'{where}["{name}"]',
                remedy="give a plain array",
            )
    return held


def _hides_something(array: Any) -> bool:
    """Whether plain numbers are not all that an array says: a mask would be lost, and so would fields."""
    return isinstance(array, np.ma.MaskedArray) or bool(getattr(getattr(array, "dtype", None), "names", None))


def device(given: Device | str | None) -> Device:
    """A device, or the best there is for None. Raises OptionError, and what `sessions.best_device` does."""
    return sessions.best_device() if given is None else arguments.choice("device", given, Device)
