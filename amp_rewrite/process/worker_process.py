"""The worker process of `worker`: answers one call after another until its input ends.

What a call uses is limited: onnx's inference makes a message of each element of a value with one axis, and
would not end for `Range(0, 2^40, 1)`. Beyond the limits the process ends, since lack of memory damages native
libraries. A call in the calling process has no limits.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import onnx
from onnx import checker, numpy_helper, shape_inference

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None

T = TypeVar("T")


def complaint(model: bytes | str, *, full: bool) -> str:
    """Return the error of onnx's checker for a model, as bytes or a path; empty if it is valid."""
    try:
        checker.check_model(model, full_check=full)
    except Exception as error:  # the checker and its C++ core raise errors of many kinds
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _attempted(infer: Callable[[], T], otherwise: T) -> T:
    """Return what onnx's inference returns; it raises errors of many kinds. Raises MemoryError."""
    try:
        return infer()
    except MemoryError:
        raise
    except Exception:
        return otherwise


def _inferred(model: bytes, *, propagates_data: bool, strict: bool = False) -> onnx.GraphProto:
    proto = onnx.ModelProto.FromString(model)
    return shape_inference.infer_shapes(proto, data_prop=propagates_data, strict_mode=strict).graph


def infer_model(model: bytes, *, propagates_data: bool = True) -> dict[str, bytes]:
    """Return the types that onnx infers for values of a model's main graph, by name; empty if it fails.

    This and the others raise MemoryError.
    """

    def infer() -> dict[str, bytes]:
        graph = _inferred(model, propagates_data=propagates_data)
        return {info.name: info.type.SerializeToString() for info in graph.value_info}

    return _attempted(infer, {})


def infer_graph(model: bytes, *, propagates_data: bool = True) -> bytes:
    """Return a model's graph with inferred types, propagating known integers; empty if inference fails."""
    return _attempted(lambda: _inferred(model, propagates_data=propagates_data).SerializeToString(), b"")


def infer_values(model: bytes, *, propagates_data: bool = True) -> list[bytes]:
    """Return a graph with the inferred types of values for each graph of a model, outer before inner.

    Known integers are propagated. Empty if the inference fails, or contradicts itself: then some inferred
    types are wrong, and a runtime would reject the model with them.
    """
    for strict in (True, False):
        try:
            graph = _inferred(model, propagates_data=propagates_data, strict=strict)
        except MemoryError:
            raise
        except Exception as error:  # as above
            if _CONTRADICTED in str(error):
                return []
        else:
            inside = _graphs(graph)
            return [onnx.GraphProto(value_info=each.value_info).SerializeToString() for each in inside]
    return []


_CONTRADICTED = "Incompatible dimensions"
"""onnx's message for a product or a sum of mismatched operands."""


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        for body in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            yield from _graphs(body)


def evaluate(model: bytes) -> dict[str, bytes]:
    """Return the outputs of a model without inputs, as tensors by name; empty if it cannot be run.

    onnxruntime runs each node as it is, on one thread; where it is not installed, onnx's reference does.
    """
    proto = onnx.ModelProto.FromString(model)
    try:
        arrays = (_run if importlib.util.find_spec("onnxruntime") else _run_by_reference)(model)
        results = zip((output.name for output in proto.graph.output), arrays, strict=True)
        return {name: numpy_helper.from_array(array).SerializeToString() for name, array in results}
    except Exception:  # either raises errors of many kinds
        return {}


def _run(model: bytes) -> Sequence[Any]:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal errors only
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, {})


def _run_by_reference(model: bytes) -> Sequence[Any]:
    reference = importlib.import_module("onnx.reference")  # slow, and seldom needed
    return reference.ReferenceEvaluator(onnx.ModelProto.FromString(model)).run(None, {})


Call = tuple[str, tuple[Any, ...], Mapping[str, Any]]
"""The name of a function, and its arguments."""

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (complaint, infer_model, infer_graph, infer_values, evaluate)
}


def answer(call: Call) -> Any:
    """Return the result of a call within its limits; end the process where it leaves them."""
    name, arguments, keywords = call
    memory = _COMPUTING if name == evaluate.__name__ else _INFERRING
    _limit(_data_at_start() + memory + _TIMES * _size(arguments[0]), time.process_time() + _SECONDS)
    try:
        return _FUNCTIONS[name](*arguments, **keywords)
    except MemoryError:
        os._exit(1)
    finally:
        _limit()


_INFERRING, _COMPUTING = 1 << 29, 1 << 32
"""The bytes that a call may use; onnx's inference takes half a second to fill its part. Callers of `evaluate`
limit what it computes, but not what an operator needs between its inputs and outputs.
"""

_TIMES = 16
"""The bytes that a call may use for each byte of its model, which is parsed, copied and serialised."""

_SECONDS = 300
"""The seconds of a call on a processor: those of a full check of 50,000 nodes are less than one."""


def _size(model: bytes | str) -> int:
    """Return the bytes of a model, or of the file at a path."""
    if isinstance(model, bytes):
        return len(model)
    return os.path.getsize(model) if os.path.isfile(model) else 0  # noqa: PTH113, PTH202


def _limit(data: float = inf, seconds: float = inf) -> None:
    """Limit the bytes of data of this process, and its time on processors, where the system can."""
    if resource is None:
        return
    for kind, most in ((resource.RLIMIT_DATA, data), (resource.RLIMIT_CPU, seconds)):
        _, hard = resource.getrlimit(kind)
        limits = [int(limit) for limit in (most, hard) if limit not in (inf, resource.RLIM_INFINITY)]
        resource.setrlimit(kind, (min(limits, default=resource.RLIM_INFINITY), hard))


@functools.cache
def _data_at_start() -> float:
    """Return the bytes of data of this process before its first call; infinity where no system says so."""
    usage = Path("/proc/self/statm")
    return int(usage.read_text("ascii").split()[5]) * mmap.PAGESIZE if usage.exists() else inf
