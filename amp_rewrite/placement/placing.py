"""Models -> their placements, each opened in a process of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx

from amp_rewrite.model import loading
from amp_rewrite.placement import opening, placement, placement_log, saved_graph
from amp_rewrite.placement.opening import SessionProcess
from amp_rewrite.placement.placement import Placement
from amp_rewrite.placement.session_process import Request
from amp_rewrite.running.sessions import Device, Feeds

Place = Callable[[Path, Feeds | None], Placement]
"""Gives the placement of a model; with inputs, it is run once."""


@contextlib.contextmanager
def placer(device: Device) -> Generator[Place]:
    """A function that places models on a device, one after the other, in one process.

    Raises MissingPackageError, OptionError and OutputError as `stub_libraries.folder` does; the function
    raises ModelError for what is not a model, and TimeLimitError.
    """
    with opening.session_process(device) as process:
        yield partial(_placed, process, device)


def place(
    model: onnx.ModelProto | str | Path, device: Device = Device.CUDA, feeds: Feeds | None = None
) -> Placement:
    """What onnxruntime executes of a model on a device. Raises what `placer` raises."""
    with placer(device) as placed, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx" if isinstance(model, onnx.ModelProto) else Path(model)
        if isinstance(model, onnx.ModelProto):
            onnx.save(model, path)
        return placed(path, feeds)


def _placed(process: SessionProcess, device: Device, model: Path, feeds: Feeds | None = None) -> Placement:
    given = placement.own_nodes(loading.load_graph(model))
    with tempfile.TemporaryDirectory(prefix="amp-rewrite-placement-") as folder:
        request = Request(model, device, Path(folder), feeds)
        answer = process.opened(request)
        if answer.refused and feeds is not None:  # a run that crashes says nothing of the load
            return _without_run(_placed(process, device, model), answer.refused)
        if answer.refused:
            return Placement(refused=answer.refused)
        log, nodes = placement_log.read(request.log), saved_graph.read(request.optimised)
    found = placement.of(nodes, log, given, cpu_asked=device is Device.CPU)
    return replace(found, failed=answer.failed, profile=answer.profile)


def _without_run(found: Placement, failed: str) -> Placement:
    return found if found.refused else replace(found, failed=failed)
