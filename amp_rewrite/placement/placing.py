"""Models -> their placements, by onnxruntime or TensorRT in a process of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import onnx
import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.model import loading
from amp_rewrite.placement import opening, placement, saved_graph, tensorrt
from amp_rewrite.placement.opening import Answer, Request, SessionProcess
from amp_rewrite.placement.placement import CpuReason, OwnNodes, Placement, PlacementLog
from amp_rewrite.placement.saved_graph import SavedGraph
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.running import run_arguments
from amp_rewrite.running.sessions import Device, Feeds, Libraries


@dataclass(frozen=True, slots=True)
class Execution:
    """A placement and the graph of which it counts the nodes, None where the model does not load.

    `on_cpu` has the reasons for nodes on the CPU provider where another one was requested.
    """

    placement: Placement
    graph: SavedGraph | None = None
    on_cpu: Mapping[ir.Node, CpuReason] = field(default_factory=dict[ir.Node, CpuReason])


Open = Callable[[Path, Feeds | None], Execution]
"""A function that opens a model, runs it once on inputs if there are any, and returns its execution."""

Place = Callable[[Path, Feeds | None], Placement]
"""A function that returns the placement alone."""


@contextlib.contextmanager
def opener(device: Device, libraries: Libraries = ()) -> Generator[Open]:
    """Yield a function that opens models on a device, one after the other, in one process, with these
    libraries of custom operators.

    Raises MissingPackageError, OptionError and OutputError as `stub_libraries.folder` does; the function
    raises ModelError for an unreadable model, and TimeLimitError.
    """
    with opening.session_process(device) as process:
        yield partial(_execute, process, device, libraries)


@contextlib.contextmanager
def placer(provider: Device | str, libraries: Libraries = (), dims: Dims | None = None) -> Generator[Place]:
    """Yield a function that returns placements alone: those on a device, or by TensorRT (`tensorrt.NAME`),
    whose sizes of open dimensions are `dims`.

    Raises as `opener` and `tensorrt.compiler` do.
    """
    if isinstance(provider, Device):
        with opener(provider, libraries) as execute:
            yield lambda model, feeds: execute(model, feeds).placement
    else:
        with tensorrt.compiler(dims or {}) as compile_model:
            yield lambda model, _: compile_model(model)


def place(
    model: onnx.ModelProto | str | Path,
    device: Device | Literal["tensorrt"] = Device.CUDA,
    feeds: Feeds | None = None,
    *,
    custom_ops: PathLike | Iterable[PathLike] = (),
    dims: Dims | None = None,
) -> Placement:
    """Return the placement of a model on a device, or by TensorRT, which runs nothing: its layers, the size
    of the engine, or in `refused` why it does not compile.

    `custom_ops` are the libraries of the model's custom operators; `dims` are sizes of open dimensions, for
    TensorRT. Raises the errors of `placer`, and OptionError for an invalid library or device.

    Examples:
        >>> from amp_rewrite import measure_placement
        >>> from amp_rewrite.demo import network
        >>> from amp_rewrite.running.sessions import Device
        >>> placement = measure_placement(network(), Device.CPU)
        >>> placement.operators["LayerNormalization"], placement.copies
        (2, 0)
    """
    if device != tensorrt.NAME:
        arguments.instance("device", device, Device, f"it is a Device, or '{tensorrt.NAME}'")
    libraries = run_arguments.libraries(custom_ops)
    with placer(device, libraries, dims) as place_model, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx" if isinstance(model, onnx.ModelProto) else Path(model)
        if isinstance(model, onnx.ModelProto):
            onnx.save(model, path)
        return place_model(path, feeds)


def _execute(
    process: SessionProcess, device: Device, libraries: Libraries, model: Path, feeds: Feeds | None = None
) -> Execution:
    original_nodes = placement.own_nodes(loading.load_graph(model))
    with tempfile.TemporaryDirectory(prefix="amp-rewrite-placement-") as folder:
        request = Request(model, device, Path(folder), feeds, libraries)
        answer = process.opened(request)
        if answer.refused and feeds is not None:  # a run that crashes says nothing of the load
            return _without_run(_execute(process, device, libraries, model), answer.refused)
        if answer.refused:
            return Execution(Placement(refused=answer.refused))
        log, graph = placement.read_log(request.log), saved_graph.read(request.optimised)
    return _executed(graph, log, original_nodes, answer, cpu_asked=device is Device.CPU)


def _executed(
    graph: SavedGraph, log: PlacementLog, original_nodes: OwnNodes, answer: Answer, *, cpu_asked: bool
) -> Execution:
    nodes = tuple(graph.nodes)
    executed = tuple(map(graph.executed, nodes))
    assignment = placement.of(executed, log, original_nodes, cpu_asked=cpu_asked)
    whys = () if cpu_asked else placement.why_on_cpu(executed, log, original_nodes)
    on_cpu = {node: why for node, why in zip(nodes, whys, strict=False) if why is not None}
    return Execution(replace(assignment, failed=answer.failed, profile=answer.profile), graph, on_cpu)


def _without_run(execution: Execution, failed: str) -> Execution:
    if execution.placement.refused:
        return execution
    return replace(execution, placement=replace(execution.placement, failed=failed))
