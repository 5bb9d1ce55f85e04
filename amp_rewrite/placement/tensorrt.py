"""TensorRT's parser and compiler, asked about a model without a GPU: the layers of its network, their types,
the size of the engine, and for a refusal the node.

TensorRT for RTX compiles ahead of time for a GPU that need not be present. Its networks are strongly typed,
as those of TensorRT 11 are: the types are those of the ONNX graph, and no layer changes them. Nothing is run,
and kernels are chosen only on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amp_rewrite.errors import EngineError, MissingPackageError
from amp_rewrite.placement import placement, saved_graph
from amp_rewrite.placement.placement import OwnNodes, Placement, PlacementLog
from amp_rewrite.placement.saved_graph import Executed
from amp_rewrite.policy.open_sizes import Dims, OpenDimensions
from amp_rewrite.process.child_process import ChildProcess, CrashError
from amp_rewrite.running.sessions import one_line

NAME = "tensorrt"
"""The name of this provider beside those of onnxruntime."""

_PACKAGES = {
    "tensorrt_rtx_bindings": "tensorrt-rtx-cu13-bindings",
    "onnxruntime_ep_nv_tensorrt_rtx": "onnxruntime-ep-nv-tensorrt-rtx-cu13",
}
"""The Python bindings, and onnxruntime's plug-in provider, which has the libraries: modules and packages."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A model to compile, and the shapes of its inputs that leave dimensions open."""

    model: Path
    shapes: Mapping[str, tuple[int | None, ...]]


@dataclass(frozen=True, slots=True)
class BuildAnswer:
    """The layers of the network and the bytes of the engine; `refused` says why there is no engine."""

    refused: str = ""
    layers: tuple[Executed, ...] = ()
    engine_bytes: int = 0


def version() -> str:
    """Return the version of the installed TensorRT for RTX; MissingPackageError without one."""
    return importlib.metadata.version(_PACKAGES[_folders()[0].name])


def _folders() -> list[Path]:
    """Return the folders of both modules, neither of which is imported."""
    specs = {name: importlib.util.find_spec(name) for name in _PACKAGES}
    for module, spec in specs.items():
        if spec is None:
            raise MissingPackageError(_PACKAGES[module], extra="tensorrt", purpose="TensorRT")
    return [Path(spec.origin or "").parent for spec in specs.values() if spec is not None]


# In the child process.


@functools.cache
def _runtime() -> Any:
    """Return the bindings, which need both libraries."""
    for name in ("tensorrt_rtx", "tensorrt_onnxparser_rtx"):  # the bindings ask the linker for them
        libraries = sorted(_folders()[1].glob(f"lib{name}.so.*"))  # importing the package adds links
        ctypes.CDLL(str(libraries[-1]), ctypes.RTLD_GLOBAL)
    return importlib.import_module("tensorrt_rtx_bindings")


def _answer(request: BuildRequest) -> BuildAnswer:
    return compile_model(_runtime(), request)


def compile_model(runtime: Any, request: BuildRequest) -> BuildAnswer:
    """Parse and compile a model with the bindings `runtime`."""
    log = _error_log(runtime)
    builder = runtime.Builder(log)
    network = builder.create_network(0)
    parser = runtime.OnnxParser(network, log)
    if not parser.parse_from_file(str(request.model)):
        return BuildAnswer(refused=_parser_error(parser) or log.first or "not parsed")
    layers = tuple(_layer(network.get_layer(index)) for index in range(network.num_layers))
    engine = builder.build_serialized_network(network, _configuration(runtime, builder, network, request))
    if engine is None:
        return BuildAnswer(refused=log.first or "not compiled")
    return BuildAnswer(layers=layers, engine_bytes=engine.nbytes)


def _error_log(runtime: Any) -> Any:
    """Return a logger that has the first error of one model."""

    class ErrorLog(runtime.ILogger):
        def __init__(self) -> None:
            runtime.ILogger.__init__(self)
            self.first = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (runtime.Logger.ERROR, runtime.Logger.INTERNAL_ERROR):
                self.first = self.first or one_line(message, _LOCATION)

    return ErrorLog()


def _parser_error(parser: Any) -> str:
    """Return the first error of the parser, behind the node that it is about."""
    if not parser.num_errors:
        return ""
    error = parser.get_error(0)
    where = f"{error.node_operator()} '{error.node_name()}': " if error.node_operator() else ""
    return f"{where}{one_line(error.desc(), _LOCATION)}"


_LOCATION = re.compile(r"(^IBuilder::\w+: Error Code \d+: | In \w+ at \S+:\d+)")
"""What TensorRT's errors have in common, and where in its sources they are raised."""


def _layer(layer: Any) -> Executed:
    inputs = (layer.get_input(index) for index in range(layer.num_inputs))
    outputs = (layer.get_output(index) for index in range(layer.num_outputs))
    types = ([_type(tensor) for tensor in tensors if tensor is not None] for tensors in (inputs, outputs))
    operator = str(layer.type).rpartition(".")[2].title().replace("_", "")
    return Executed(operator, layer.name, *map(tuple, types))


def _type(tensor: Any) -> str:
    name = str(tensor.dtype).rpartition(".")[2]
    return _TYPES.get(name, name.lower())


_TYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}


def _configuration(runtime: Any, builder: Any, network: Any, request: BuildRequest) -> Any:
    configuration = builder.create_builder_config()
    configuration.num_compute_capabilities = 1
    configuration.set_compute_capability(runtime.ComputeCapability.SM89, 0)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    open_inputs = [tensor for tensor in inputs if -1 in tuple(tensor.shape)]
    if open_inputs:
        profile = builder.create_optimization_profile()
        for tensor in open_inputs:
            shape = request.shapes[tensor.name]
            profile.set_shape(tensor.name, shape, shape, shape)
        configuration.add_optimization_profile(profile)
    return configuration


# In the user's process.


@contextlib.contextmanager
def compiler(dims: Dims) -> Generator[Callable[[Path], Placement]]:
    """Yield a function that returns the placement of a model: layers in the place of nodes.

    `dims` are the sizes of open dimensions. Raises MissingPackageError without TensorRT; the function raises
    ModelError for an unreadable model, OptionError for a size that is not open, and TimeLimitError.
    """
    version()
    with contextlib.closing(ChildProcess(_answer)) as process:
        yield lambda model: _compile(process, model, dims)


def compile_result(original: Path, result: Path, dims: Dims) -> Placement:
    """Return the placement of the result of a model. Raises EngineError where TensorRT refuses it, and as
    `compiler`.
    """
    with compiler(dims) as compile_model:
        engine = compile_model(result)
        if engine.refused and (reason := compile_model(original).refused):
            problem = f"TensorRT refuses the model itself: {reason}"
            raise EngineError(
                problem, where=original, remedy="mend it, or do without the check if the node is a plugin"
            )
    if engine.refused:
        remedy = "rewrite for the target tensorrt, or keep that node in float32 with `Pins.keep_full`"
        raise EngineError(f"TensorRT refuses the result: {engine.refused}", where=original, remedy=remedy)
    return engine


def _compile(process: ChildProcess, model: Path, dims: Dims) -> Placement:
    graph = saved_graph.load(model).graph
    sizes = OpenDimensions(graph, dims)
    shapes = {value.name or "": sizes.of_value(value) or () for value in graph.inputs}
    try:
        answer: BuildAnswer = process.ask(BuildRequest(model.resolve(), shapes))
    except CrashError as error:
        answer = BuildAnswer(refused=f"TensorRT crashes ({error})")
    if answer.refused:
        return Placement(refused=answer.refused)
    counts = placement.of(answer.layers, PlacementLog(), OwnNodes({}, ()), cpu_asked=False)
    return replace(counts, fused={}, engine_bytes=answer.engine_bytes)
