"""onnxruntime, if it is installed: opening sessions on the best device, and running them."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import parser

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import (
    EXPORT_AGAIN,
    AmpRewriteError,
    FeedError,
    MissingPackageError,
    ModelError,
    OptionError,
    ResourceError,
    RunError,
)
from amp_rewrite.model import loading, serialization
from amp_rewrite.process import interruptible
from amp_rewrite.running.inputs import declared_inputs
from amp_rewrite.running.repeatable import may_draw, repeatable
from amp_rewrite.running.sequences import Steps, sequences
from amp_rewrite.text import shortened

# Errors of runtimes: the reason on one line, and whether it is lack of memory or threads.

_SCARCE = re.compile(
    r"bad_alloc|bad allocation|Failed to allocate memory|Cannot allocate memory|out of memory|ALLOC_FAILED"
    r"|Resource temporarily unavailable|failed to map segment",
    re.IGNORECASE,
)
"""What onnxruntime (its arena and thread pool), the C++ library, the loader, CUDA, cuBLAS and cuDNN say."""


def is_scarce(error: BaseException) -> bool:
    """Return whether an exception says that the system gave no memory or no thread: no fault of a model."""
    return isinstance(error, MemoryError) or bool(_SCARCE.search(str(error)))


def reason(error: BaseException) -> str:
    """Return the reason that an exception of onnxruntime gives, without its codes and places in C++."""
    return one_line(str(error), *_NOISE) or type(error).__name__


def one_line(message: str, *noise: re.Pattern[str]) -> str:
    """Return a message on one line without `noise`; of a long one, the beginning and the end."""
    line = " ".join(message.split())
    for pattern in noise:
        line = pattern.sub("", line)
    return shortened(line.strip(), _LONGEST)


_LONGEST = 400
_PLACE = r"(?<!\S)\S+\.(?:cc|cpp|cu|cuh|h|hpp):\d+ .*?"
_NOISE = (
    re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : "),
    re.compile(r"^Load model from .* failed: ?"),  # an error says where it is
    re.compile(rf"{_PLACE} was false\. "),
    re.compile(rf"{_PLACE}\)(?: const)?(?: \[with [^\]]*\])? "),
    re.compile(r" ?==> Context:.*"),
)


# Libraries of custom operators, for onnxruntime to load into the sessions of a model.

Libraries = tuple[Path, ...]
"""The paths of shared libraries, each with a function RegisterCustomOps."""


def register(options: Any, libraries: Libraries) -> None:
    """Add libraries to SessionOptions; raise OptionError for one that onnxruntime rejects."""
    for path in libraries:
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:  # onnxruntime's errors have no common base class
            problem = f"onnxruntime refuses the library {path} of custom operators ({reason(error)})"
            raise OptionError(problem, remedy=_REMEDY) from error


_REMEDY = "give the shared library that exports RegisterCustomOps, built for this machine"


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
    """Convert a numeric array to the element type of a float input; return all else unchanged."""
    dtype = _FLOATS.get(input_type)
    if dtype is None or not isinstance(value, np.ndarray):
        return value
    if value.dtype == dtype or value.dtype.kind not in _REAL:
        return value
    with np.errstate(over="ignore"):
        return value.astype(dtype)


def to_ort_value(array: Any, input_type: str) -> Any:
    """Return an array as an OrtValue, which may share the array's memory."""
    ort_value = onnxruntime().OrtValue
    if input_type == BFLOAT16:
        return ort_value.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16_ENUM)
    return ort_value.ortvalue_from_numpy(np.asarray(array, order="C"))


def from_ort_value(value: Any) -> NDArray[Any]:
    """Return the array in an OrtValue in main memory."""
    if value.data_type() != BFLOAT16:
        return value.numpy()
    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(bits, np.uint16).reshape(value.shape()).view(ml_dtypes.bfloat16)


@contextlib.contextmanager
def run_errors(where: str | Path) -> Generator[None]:
    """Turn exceptions of onnxruntime during a run into a RunError or ResourceError at `where`."""
    try:
        yield
    except Exception as error:  # onnxruntime's errors have no common base class
        problem = f"the run failed ({reason(error)})"
        if is_scarce(error):
            raise ResourceError(problem, where=where) from error
        raise RunError(problem, where=where, remedy="give inputs that fit with `samples`") from error


T = TypeVar("T")

Feeds = Mapping[str, Any]
"""The inputs of a run, by name."""

Runnable = onnx.ModelProto | str | Path
"""A model, or the path of one."""


class Device(enum.Enum):
    """An execution device: CUDA with TF32 off, or the CPU."""

    CUDA = "CUDA"
    CPU = "CPU"


def providers(device: Device, *, tf32: bool = False) -> list[Any]:
    """Return onnxruntime's providers for a device; `tf32` lets CUDA round float32 products to TF32."""
    cuda = ("CUDAExecutionProvider", {"use_tf32": str(int(tf32))})
    return [*([cuda] if device is Device.CUDA else []), "CPUExecutionProvider"]


LARGE = 1 << 30
"""The bytes of a model above which no sessions of it are opened beside those that compare it: each may take a
copy, so that no plan is searched for, no flag is tried, and no noise is measured.
"""

FATAL_ONLY = 4
"""onnxruntime's log level for fatal errors only."""


def onnxruntime() -> Any:
    """Return the module; raise MissingPackageError if it is not installed."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        if is_scarce(error):
            raise ResourceError(f"onnxruntime does not load ({reason(error)})") from error
        raise MissingPackageError("onnxruntime", extra="cpu", purpose="running a model") from error


def run_interruptible(work: Callable[[Any], T]) -> T:
    """Return the result of `work`, which gets the RunOptions for its runs.

    All work of onnxruntime on a user's model goes through here, so that signals and time limits can interrupt
    it (see `process.interruptible`).
    """
    options = onnxruntime().RunOptions()
    return interruptible.call(partial(work, options), partial(setattr, options, "terminate", True))


@functools.cache
def best_device() -> Device:
    """Return CUDA if it works, else the CPU; raise MissingPackageError without onnxruntime.

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


def open_session(
    model: Runnable,
    device: Device = Device.CPU,
    libraries: Libraries = (),
    *,
    optimised: bool = True,
    folder: Path | None = None,
) -> Any:
    """Open a session on a device, with libraries of custom operators; unless `optimised`, without fusion and
    constant folding. `folder` has the data files of a model in memory. Raises ModelError if onnxruntime
    rejects the model.
    """
    options = session_options(libraries)
    if folder is not None:
        options.add_session_config_entry(DATA_FOLDER, str(folder))
    if not optimised:
        options.graph_optimization_level = onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return opened(model, device, options)
    except ModelError:
        if device is not Device.CPU:
            raise
        options.add_session_config_entry(NO_QUANTISED, "1")  # it fuses some that it then refuses (1.32)
        with contextlib.suppress(ModelError):
            return opened(model, device, options)
        raise


def session_options(libraries: Libraries) -> Any:
    """Return SessionOptions with custom operator libraries; OptionError for one that onnxruntime rejects."""
    options = onnxruntime().SessionOptions()
    register(options, libraries)
    return options


NO_QUANTISED = "session.disable_quant_qdq"
"""The session option against integer kernels for what stands between DequantizeLinear and QuantizeLinear."""
DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The session option for the folder of a model's external data."""


def opened(model: Runnable, device: Device, options: Any) -> Any:
    """Open a session with these options; raise ModelError as `open_session`."""
    source = _source(model, options)
    return run_interruptible(lambda _: create(source, options, device))


def _source(model: Runnable, options: Any) -> bytes | str:
    """Return the model, or the bytes of its `repeatable` copy if it has random operators."""
    if isinstance(model, onnx.ModelProto):
        return (repeatable(model) or model).SerializeToString()
    path = _path(model)
    replacement = repeatable(loading.load_graph(Path(path))) if may_draw(Path(path)) else None
    if replacement is None:
        return path
    options.add_session_config_entry(DATA_FOLDER, str(Path(path).parent.absolute()))
    return replacement.SerializeToString()


def create(
    model: bytes | str, options: Any, device: Device, where: str | Path = "", *, tf32: bool = False
) -> Any:
    """Create an InferenceSession; raise ModelError, at `where`, if onnxruntime rejects the model."""
    options.log_severity_level = FATAL_ONLY
    try:
        session = onnxruntime().InferenceSession(model, options, providers=providers(device, tf32=tf32))
    except Exception as error:  # onnxruntime's errors have no common base class
        why = reason(error)
        if is_scarce(error):
            raise ResourceError(f"onnxruntime does not open the model ({why})", where=where) from error
        remedy = "give the library of its kernels with `custom_ops`" if "not a registered" in why else ""
        raise ModelError(f"onnxruntime refuses the model ({why})", where=where, remedy=remedy) from error
    _refuse_bad_names(session, where)
    return session


def _refuse_bad_names(session: Any, where: str | Path) -> None:
    """Raise ModelError where onnxruntime cannot tell the names of inputs and outputs, or of their sizes."""
    try:
        for entry in (*session.get_inputs(), *session.get_outputs()):
            str((entry.name, entry.shape))
    except UnicodeDecodeError as error:
        problem = "onnxruntime refuses the model (names of its inputs or outputs are not UTF-8)"
        raise ModelError(problem, where=where, remedy=EXPORT_AGAIN) from error


def _path(model: str | Path) -> str:
    """Return the path for onnxruntime; raise ModelError if it is not UTF-8, or not a regular file
    (onnxruntime would block on a pipe).
    """
    with loading.open_file(Path(model)):
        try:
            str(model).encode()
        except UnicodeEncodeError as error:
            problem = "has a name that is not UTF-8, which onnxruntime does not support"
            raise ModelError(problem, where=model, remedy="rename it") from error
        return str(model)


def run_session(
    session: Any, feeds: Feeds, selection: Container[str] | None = None, *, where: str = ""
) -> dict[str, Any]:
    """Return all outputs of a session by name, or only the selected ones; of a sequence, all of each step.

    Raises RunError or ResourceError, at `where`, if the run fails, and FeedError if the feeds do not fit.
    """
    if isinstance(feeds, Steps):
        return feeds.run(partial(run_session, session, where=where))
    outputs = [o for o in session.get_outputs() if selection is None or o.name in selection]
    names = [output.name for output in outputs]
    types = {entry.name: entry.type for entry in session.get_inputs()}
    inputs = {name: to_input_type(value, types.get(name, "")) for name, value in feeds.items()}

    def run(options: Any) -> list[Any]:
        with run_errors(where):
            if BFLOAT16 not in (*types.values(), *(output.type for output in outputs)):
                return session.run(names, inputs, options)
            values = {name: to_ort_value(array, types[name]) for name, array in inputs.items()}
            ort_values = session.run_with_ort_values(names, values, options)
            return [from_ort_value(value) for value in ort_values]

    try:
        return dict(zip(names, run_interruptible(run), strict=True))
    except RunError:
        declared_inputs.refuse(session, inputs, where)
        raise


# What callers give for runs: models, samples, libraries and devices.

Samples = Feeds | Iterable[Feeds]
"""Mappings from input names to arrays; a single one need not be in a list."""

_ARRAYS = 'give arrays by the names of the inputs, as in [{"image": array}]'


def check_model(name: str, source: loading.ModelSource) -> Runnable:
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


def check_samples(value: Samples, source: loading.ModelSource = b"", steps: int = 1) -> Iterator[Feeds]:
    """Yield the samples, each validated on request, or with `steps` sequences of them for a model; raise
    FeedError for an invalid one, or if the iterable raises, and OptionError for a model without state.
    """
    if arguments.whole("steps", steps, least=1) > 1:
        return sequences(loading.load(source).model, check_samples(value), steps, steps)
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


def check_libraries(paths: PathLike | Iterable[PathLike]) -> Libraries:
    """Return absolute paths of custom operator libraries, valid in workers too, after loading each once in a
    child process, which a truncated file crashes, and once here.

    Raises OptionError for one that is missing or that onnxruntime refuses, and MissingPackageError without
    onnxruntime.
    """
    files = tuple(dict.fromkeys(path.absolute() for path in arguments.paths("custom_ops", paths)))
    for path in files:
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            raise OptionError(f"the library {path} of custom operators {problem}", remedy="check the path")
        load = [sys.executable, "-I", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(path)]
        if subprocess.run(load, check=False, capture_output=True).returncode < 0:
            problem = f"loading the library {path} of custom operators crashes: it may be damaged"
            raise OptionError(problem, remedy=_REMEDY)
    if files:
        session_options(files)
    return files


def check_device(value: Device | str | None) -> Device:
    """Return the device, the best one for None.

    Raises OptionError for one that is not known or does not work here, and MissingPackageError without
    onnxruntime.
    """
    if value is None:
        return best_device()
    target = arguments.choice("device", value, Device)
    if target is Device.CUDA and best_device() is not Device.CUDA:
        raise OptionError("CUDA does not work here", remedy=_OTHER_DEVICE)
    return target


_OTHER_DEVICE = "give `device=CPU`, or a machine with CUDA and onnxruntime-gpu in place of onnxruntime"
