"""onnx's checker and inference in a worker process, since an invalid model can crash them.

With onnx 1.23, a GatherND with a negative `batch_dims` and a LayerNormalization with an axis far out of
bounds crash the calling process. The worker starts with the first call and serves all further ones, one after
the other; if a call crashes it, or leaves its limits, the call has no result, and the next one starts a new
worker.

What a call uses is limited: onnx's inference makes a message of each element of a value with one axis, and
would not end for `Range(0, 2^40, 1)`. Beyond the limits the process ends, since lack of memory damages native
libraries. A call in the calling process has no limits.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import onnx
from onnx import checker, numpy_helper, shape_inference

from amp_rewrite.errors import RunError
from amp_rewrite.process.child_process import ChildProcess, CrashError

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None

P = ParamSpec("P")
T = TypeVar("T")

# The calling process.


def start() -> None:
    """Start the worker in advance, so that it is ready when needed."""
    child, lock = _worker(os.getpid())
    with lock, contextlib.suppress(RunError):
        child.start()


def fork() -> None:
    """Start the worker as a fork of a process that has no threads: it need not import onnx again."""
    if hasattr(os, "fork"):
        with contextlib.suppress(RunError):  # the first call does without a worker
            _worker(os.getpid())[0].start("fork")


def call(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T | None:
    """Call one of FUNCTIONS in the worker; None if the call crashes it.

    If no worker with onnx can be started, as in an embedded interpreter, the function is called in this
    process.
    """
    child, lock = _worker(os.getpid())
    try:
        with lock:
            return child.ask((function.__name__, arguments, keywords), is_interruptible=False)
    except CrashError:
        return None
    except RunError:
        return function(*arguments, **keywords)


def infer(
    model: onnx.ModelProto, *, propagates_data: bool = True, is_strict: bool = False
) -> onnx.GraphProto | None:
    """Return a model's graph with the types that onnx infers; None if it crashes or fails.

    Known integers are propagated, with `propagates_data`, unless these are too many for onnx. With
    `is_strict`, there is no result if the inference contradicts itself: then some inferred types are wrong,
    and a runtime would reject the model with them.
    """
    data, strict = model.SerializeToString(), is_strict
    result = call(infer_graph, data, propagates_data=propagates_data, is_strict=strict)
    if result is None and propagates_data:
        result = call(infer_graph, data, propagates_data=False, is_strict=strict)
    return onnx.GraphProto.FromString(result) if result else None


MADE_UP = "unk__"
"""The beginning of the names that onnx's inference gives to open sizes."""


@functools.cache
def _worker(_process: int) -> tuple[ChildProcess, threading.Lock]:
    """Return the worker of a process. A fork has its own: a thread that it lacks may hold the lock."""
    return ChildProcess(answer), threading.Lock()


# The worker process.


def complaint(model: bytes | str, *, full: bool) -> str:
    """Return the error of onnx's checker for a model, as bytes or a path; empty if it is valid."""
    try:
        checker.check_model(model, full_check=full)
    except Exception as error:  # the checker and its C++ core raise errors of many kinds
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def infer_graph(model: bytes, *, propagates_data: bool, is_strict: bool) -> bytes:
    """Return what `infer` does; empty if the inference fails. Raises MemoryError."""
    proto = onnx.ModelProto.FromString(model)
    for strict in (True, False) if is_strict else (False,):
        try:
            inferred = shape_inference.infer_shapes(proto, data_prop=propagates_data, strict_mode=strict)
            return inferred.graph.SerializeToString()
        except MemoryError:
            raise
        except Exception as error:  # it raises errors of many kinds
            if is_strict and _CONTRADICTED in str(error):
                break
    return b""


_CONTRADICTED = "Incompatible dimensions"
"""onnx's message for a product or a sum of mismatched operands."""


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

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (complaint, infer_graph, evaluate)
}


def answer(call: Call) -> Any:
    """Return the result of a call within its limits; end the process where it leaves them."""
    name, arguments, keywords = call
    memory = _COMPUTING if name == evaluate.__name__ else _INFERRING
    _limit(_data_at_start() + memory + _TIMES * _size(arguments[0]), time.process_time() + _SECONDS)
    try:
        return FUNCTIONS[name](*arguments, **keywords)
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
