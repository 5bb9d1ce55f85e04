"""onnxruntime, if it is installed: opening sessions on the best device, and running them."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import parser

from amp_rewrite.errors import MissingPackageError, ModelError, RunError
from amp_rewrite.model import loading, proto_traversal
from amp_rewrite.numerics.half import BY_NAME, Half
from amp_rewrite.process import fork_safe, interruptible
from amp_rewrite.running import custom_ops, repeatable, webgpu
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.inputs import misfits

# NumPy arrays <-> onnxruntime's OrtValues; onnxruntime handles bfloat16 as raw bits only.

BFLOAT16 = "tensor(bfloat16)"
"""The type string of onnxruntime."""

_FLOATS: Mapping[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_BFLOAT16_ENUM = 16
"""TensorProto.BFLOAT16."""
_REAL = "biufV"
"""NumPy's codes for booleans, integers and floats; V includes ml_dtypes' bfloat16. Complex numbers are not
converted: they would lose their imaginary part.
"""


def to_input_type(value: Any, input_type: str) -> Any:
    """A numeric array, converted to the element type of a float input; everything else unchanged."""
    wanted = _FLOATS.get(input_type)
    if wanted is None or not isinstance(value, np.ndarray):
        return value
    if value.dtype == wanted or value.dtype.kind not in _REAL:
        return value
    with np.errstate(over="ignore"):
        return value.astype(wanted)


def to_ort_value(ort_value: Any, array: Any, input_type: str) -> Any:
    """An array as an instance of onnxruntime's class `ort_value`, which may share the array's memory."""
    if input_type == BFLOAT16:
        return ort_value.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16_ENUM)
    return ort_value.ortvalue_from_numpy(np.asarray(array, order="C"))


def from_ort_value(value: Any) -> NDArray[Any]:
    """The array in an OrtValue that is in main memory."""
    if value.data_type() != BFLOAT16:
        return value.numpy()
    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(bits, np.uint16).reshape(value.shape()).view(ml_dtypes.bfloat16)


# One run of a session of onnxruntime, as a function of its options.


def prepared(
    session: Any, feeds: Mapping[str, Any], wanted: Container[str] | None, where: str
) -> Callable[[Any], dict[str, Any]]:
    """A run that gives the outputs by name, or those in `wanted`; it is called with its RunOptions.

    It raises RunError, at `where`, if it fails, and FeedError if that is since the feeds do not fit.
    """
    outputs = [o for o in session.get_outputs() if wanted is None or o.name in wanted]
    names = [output.name for output in outputs]
    types = {entry.name: entry.type for entry in session.get_inputs()}
    inputs = {name: to_input_type(value, types.get(name, "")) for name, value in feeds.items()}
    plain = BFLOAT16 not in (*types.values(), *(output.type for output in outputs))

    def results(options: Any) -> list[Any]:
        if plain:
            return session.run(names, inputs, options)
        make = fork_safe.import_module("onnxruntime").OrtValue
        values = {n: to_ort_value(make, array, types[n]) for n, array in inputs.items()}
        found = session.run_with_ort_values(names, values, options)
        return [from_ort_value(value) for value in found]

    def run(options: Any) -> dict[str, Any]:
        try:
            with run_errors(where):
                return dict(zip(names, results(options), strict=True))
        except RunError:
            misfits.refuse(session, inputs, where)
            raise

    return run


@contextlib.contextmanager
def run_errors(where: str | Path) -> Generator[None]:
    """Turns what onnxruntime raises during a run into a RunError at `where`."""
    try:
        yield
    except Exception as error:  # onnxruntime's errors have no common base class
        problem = f"the run failed ({custom_ops.first_line(error)})"
        raise RunError(problem, where=where, remedy="give inputs that fit with `samples`") from error


T = TypeVar("T")

Feeds = Mapping[str, Any]
"""The inputs of a run, by name."""

Runnable = onnx.ModelProto | str | Path
"""A model, or the path of one."""


class Device(enum.Enum):
    """Where a model runs: a CUDA device with TF32 off, the CPU, or a WebGPU adapter.

    WebGPU computes in half where a model is half, in software too (Mesa's Vulkan driver for CPUs).
    """

    CUDA = "CUDA"
    CPU = "CPU"
    WEBGPU = "WebGPU"


def reference(device: Device) -> Device:
    """Where the float32 model runs for a comparison with half on a device.

    Beside WebGPU that is the CPU: it has kernels for every operator, and is exact to float32.
    """
    return Device.CPU if device is Device.WEBGPU else device


def providers(device: Device, *, tf32: bool = False) -> list[Any]:
    """onnxruntime's execution providers for a device; `tf32` lets CUDA round float32 products to TF32."""
    cuda = ("CUDAExecutionProvider", {"use_tf32": str(int(tf32))})
    return [*([cuda] if device is Device.CUDA else []), "CPUExecutionProvider"]


FATAL_ONLY = 4
"""onnxruntime's log level that prints only errors which end the process."""


def onnxruntime() -> Any:
    """The module; MissingPackageError if it is not installed."""
    try:
        return fork_safe.import_module("onnxruntime")
    except ImportError as error:
        raise MissingPackageError("onnxruntime", extra="cpu", purpose="running a model") from error


def run_interruptible(work: Callable[[Any], T]) -> T:
    """The result of `work`, which is called with the RunOptions to use for its runs.

    Everything that onnxruntime does with a user's model goes through here, so that signals and time limits
    can interrupt it (see `stoppable`).
    """
    options = onnxruntime().RunOptions()
    return interruptible.call(partial(work, options), partial(setattr, options, "terminate", True))


@functools.cache
def best_device() -> Device:
    """CUDA if it works, else the CPU; MissingPackageError without onnxruntime.

    A GPU build lists its provider even if the CUDA libraries or the device are missing, so a model of one
    node is tried. onnxruntime's warnings about a fallback are suppressed.
    """
    runtime = onnxruntime()
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        return Device.CPU
    runtime.set_default_logger_severity(FATAL_ONLY)
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    try:
        session = open_session(parser.parse_model(_PROBE), Device.CUDA)
    except ModelError:
        return Device.CPU
    return Device.CUDA if "CUDAExecutionProvider" in session.get_providers() else Device.CPU


_PROBE = '<ir_version: 8, opset_import: ["": 17]> probe (float[1] x) => (float[1] y) { y = Relu (x) }'


def open_session(model: Runnable, device: Device = Device.CPU, libraries: Libraries = ()) -> Any:
    """A session on a device, with libraries of custom operators; ModelError if onnxruntime rejects the
    model.
    """
    return opened(model, device, session_options(libraries))


def session_options(libraries: Libraries) -> Any:
    """SessionOptions with libraries of custom operators; OptionError for one that onnxruntime refuses."""
    options = onnxruntime().SessionOptions()
    custom_ops.register(options, libraries)
    return options


def open_unoptimised_session(model: Runnable, device: Device = Device.CPU, libraries: Libraries = ()) -> Any:
    """A session that runs every node as it is, without fusion or constant folding; ModelError as above."""
    options = session_options(libraries)
    options.graph_optimization_level = onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    return opened(model, device, options)


DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The option that has the folder of the files with a model's data."""


def opened(model: Runnable, device: Device, options: Any) -> Any:
    """A session with options of its own; ModelError as above."""
    source = _source(model, options)
    return run_interruptible(lambda _: create(source, options, device))


def _source(model: Runnable, options: Any) -> bytes | str:
    """The model as it is, or the bytes of one that draws the same random numbers in every run."""
    if isinstance(model, onnx.ModelProto):
        return (repeatable.repeatable(model) or model).SerializeToString()
    path = _path(model)
    made = repeatable.repeatable(loading.load_graph(Path(path))) if repeatable.may_draw(Path(path)) else None
    if made is None:
        return path
    options.add_session_config_entry(DATA_FOLDER, str(Path(path).parent.absolute()))
    return made.SerializeToString()


def create(
    model: bytes | str, options: Any, device: Device, where: str | Path = "", *, tf32: bool = False
) -> Any:
    """An InferenceSession; ModelError, at `where`, if onnxruntime rejects the model.

    Raises MissingPackageError for WebGPU without its package.
    """
    options.log_severity_level = FATAL_ONLY
    asked: dict[str, Any] = {"providers": providers(device, tf32=tf32)}
    if device is Device.WEBGPU:
        webgpu.select(onnxruntime(), options)
        asked = {"enable_fallback": 0}  # to the CPU, which would judge in WebGPU's name
    try:
        with webgpu.without_notes() if device is Device.WEBGPU else contextlib.nullcontext():
            return onnxruntime().InferenceSession(model, options, **asked)
    except Exception as error:  # onnxruntime's errors have no common base class
        problem = f"onnxruntime refuses the model ({custom_ops.first_line(error)})"
        raise ModelError(problem, where=where) from error


def _path(model: str | Path) -> str:
    """The path as onnxruntime takes it; ModelError if it is not UTF-8, or not a regular file (onnxruntime
    would block on a pipe).
    """
    with loading.open_file(Path(model)):
        try:
            str(model).encode()
        except UnicodeEncodeError as error:
            problem = "has a name that is not UTF-8, which onnxruntime does not support"
            raise ModelError(problem, where=model, remedy="rename it") from error
        return str(model)


def run_session(
    session: Any, feeds: Feeds, wanted: Container[str] | None = None, *, where: str = ""
) -> dict[str, Any]:
    """The outputs of a session by name, or only those in `wanted`.

    Raises RunError, at `where`, if the run fails, and FeedError if that is since the feeds do not fit.
    """
    return run_interruptible(prepared(session, feeds, wanted, where))


def run_side_by_side(
    session: Any, samples: Iterable[tuple[str, Feeds]], then: Callable[[Feeds, dict[str, Any]], T]
) -> list[T]:
    """What `then` makes of each sample and its outputs, in the threads of the runs; samples have names.

    Raises as `run_session`.
    """
    options = onnxruntime().RunOptions()

    def work(run: Callable[[Any], dict[str, Any]], feeds: Feeds) -> T:
        return then(feeds, run(options))

    works = [partial(work, prepared(session, f, None, where), f) for where, f in samples]
    return interruptible.call_all(works, partial(setattr, options, "terminate", True))


# The half type of a model, by its Casts, stored tensors and inputs.


def half_of(model: Runnable) -> Half | None:
    """The half type that a model has, the first one that is found; None for a model without half."""
    proto = model if isinstance(model, onnx.ModelProto) else loading.load_graph(Path(model))
    return next((_HALVES[dtype] for dtype in _element_types(proto) if dtype in _HALVES), None)


_HALVES = {int(half.dtype): half for half in BY_NAME.values()}


def _element_types(proto: onnx.ModelProto) -> Iterator[int]:
    for node in proto_traversal.every_node(proto):
        if node.op_type == "Cast":
            yield from (attribute.i for attribute in node.attribute if attribute.name == "to")
    for graph in (*proto_traversal.graphs(proto.graph), *proto_traversal.in_functions(proto)):
        yield from (tensor.data_type for tensor in graph.initializer)
        yield from (declared.type.tensor_type.elem_type for declared in graph.input)
