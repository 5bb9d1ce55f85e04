"""The cases of onnx's backend test suite: those that it makes in memory, and those in its folders."""

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import model as model_cases
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.loader import load_model_tests

from amp_rewrite.running.inputs import feeds

PACKAGE = Path(onnx.__file__).parents[1]
FOLDERS = ("simple", "pytorch-converted", "pytorch-operator", "real")


@dataclass(frozen=True)
class Case:
    """A model of the suite, with inputs by name, and the outputs that onnx expects where it says so."""

    name: str
    data: bytes
    feeds: dict[str, Any]
    expected: tuple[Any, ...] = ()
    proto: onnx.ModelProto = field(repr=False, compare=False, default=None)


def of_nodes() -> list[Case]:
    """One operator each, and the same as the nodes that its function expands to."""
    return [_from_memory(found) for found in _collected(node_cases)]


def of_models() -> list[Case]:
    """Small models in memory, and all that lie in the folders of the onnx package."""
    made = [_from_memory(found) for found in _collected(model_cases) if found.model is not None]
    return made + [_from_folder(found) for kind in FOLDERS for found in load_model_tests(kind=kind)]


def _collected(room):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose while they are made
        return room.collect_testcases(None) if room is node_cases else room.collect_testcases()


def _from_memory(found):
    inputs, outputs = found.data_sets[0] if found.data_sets else ((), ())
    names = [info.name for info in found.model.graph.input]
    given = dict(zip(names, map(_plain, inputs), strict=False))
    return _case(found.name, found.model, given, tuple(map(_plain, outputs)))


def _case(name, proto, given, expected):
    return Case(name, proto.SerializeToString(), given, expected, proto)


def _plain(value):
    """A value as onnxruntime takes it: arrays, and lists of them."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return np.asarray(value) if isinstance(value, np.generic) else value


def _from_folder(found):
    """A folder with a model and its inputs; the light networks are single files, and get inputs of ours."""
    path = PACKAGE / found.url if found.url else Path(found.model_dir) / "model.onnx"
    sets = sorted(path.parent.glob("test_data_set_*"))[:1] if found.model_dir else []
    given = dict(next(iter(feeds.feeds(path, feeds.Data(tuple(sets))))))
    return _case(f"{found.kind}/{found.name}", onnx.load(path), given, ())
