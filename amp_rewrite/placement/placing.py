"""Models -> their placements, by onnxruntime or TensorRT in a process of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import onnx

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.model import loading
from amp_rewrite.placement import opening, placement, saved_graph, tensorrt
from amp_rewrite.placement.opening import Request, SessionProcess
from amp_rewrite.placement.placement import Placement
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device, Feeds, Libraries

Place = Callable[[Path, Feeds | None], Placement]
"""A function that opens a model, runs it once on inputs if there are any, and returns its placement."""


@contextlib.contextmanager
def placer(provider: Device | str, libraries: Libraries = (), dims: Dims | None = None) -> Generator[Place]:
    """Yield a function that places models one after the other: on a device, in one process, with these
    libraries of custom operators, or by TensorRT (`tensorrt.NAME`), whose sizes of open dimensions are
    `dims`.

    Raises MissingPackageError without onnxruntime, and as `tensorrt.compiler` does; the function raises
    ModelError for an unreadable model, and TimeLimitError.
    """
    if isinstance(provider, Device):
        with opening.session_process() as process:
            yield partial(_place, process, provider, libraries)
    else:
        with tensorrt.compiler(dims or {}) as compile_model:
            yield lambda model, _: compile_model(model)


def place(
    model: onnx.ModelProto | str | Path,
    device: Device | Literal["tensorrt"] | None = None,
    feeds: Feeds | None = None,
    *,
    custom_ops: PathLike | Iterable[PathLike] = (),
    dims: Dims | None = None,
) -> Placement:
    """Return the placement of a model on a device, by default CUDA if it works, or by TensorRT, which runs
    nothing: its layers, the size of the engine, or in `refused` why it does not compile.

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
    if device is not None and device != tensorrt.NAME:
        arguments.instance("device", device, Device, f"it is a Device, or '{tensorrt.NAME}'")
    provider = device if device == tensorrt.NAME else sessions.check_device(device)
    libraries = sessions.check_libraries(custom_ops)
    with placer(provider, libraries, dims) as place_model, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx" if isinstance(model, onnx.ModelProto) else Path(model)
        if isinstance(model, onnx.ModelProto):
            onnx.save(model, path)
        return place_model(path, feeds)


def _place(
    process: SessionProcess, device: Device, libraries: Libraries, model: Path, feeds: Feeds | None = None
) -> Placement:
    original_nodes = placement.own_nodes(loading.load_graph(model))
    with tempfile.TemporaryDirectory(prefix="amp-rewrite-placement-") as folder:
        request = Request(model, device, Path(folder), feeds, libraries)
        answer = process.opened(request)
        if answer.refused and feeds is not None:  # a run that crashes says nothing of the load
            placed = _place(process, device, libraries, model)
            return placed if placed.refused else replace(placed, failed=answer.refused)
        if answer.refused:
            return Placement(refused=answer.refused)
        log, nodes = placement.read_log(request.log), saved_graph.read(request.optimised)
    placed = placement.of(nodes, log, original_nodes, cpu_asked=device is Device.CPU)
    return replace(placed, failed=answer.failed, profile=answer.profile)
