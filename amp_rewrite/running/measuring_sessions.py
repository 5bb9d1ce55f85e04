"""Sessions in which nodes reduce values within the run, in the order of the nodes."""

from __future__ import annotations

import enum
import os
import tempfile
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import onnx

from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device, Libraries

T = TypeVar("T")


class Optimisation(enum.Enum):
    """How far onnxruntime changes a graph; LAYOUT_KEPT does not have convolutions pass on their channels in
    blocks (NCHWc), which everybody else who reads a value has to reorder.
    """

    NONE = "ORT_DISABLE_ALL"
    LAYOUT_KEPT = "ORT_ENABLE_EXTENDED"
    ALL = "ORT_ENABLE_ALL"


@dataclass(frozen=True, slots=True)
class Setting:
    """Where sessions run: a device, with libraries of custom operators, and how many runs are made `abreast`.

    `folder` has the files with the model's data.
    """

    device: Device
    folder: Path | None = None
    libraries: Libraries = ()
    abreast: int = 1


def open_session(model: onnx.ModelProto, setting: Setting, optimisation: Optimisation) -> Any:
    """A session that computes values in the order of the nodes, so that what a node reduces does not wait for
    the end of the run. ModelError if onnxruntime rejects the model.

    Where as many runs as there are processors are made abreast, each has one thread.
    """
    return sessions.opened(model, setting.device, _options(setting, optimisation))


def open_changed_session(
    model: onnx.ModelProto, setting: Setting, change: Callable[[onnx.GraphProto], T | None]
) -> tuple[Any, T] | None:
    """The same of what onnxruntime makes of a model at most, then changed, with what `change` returned, which
    is called with its graph; None if that is None.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.onnx"
        first = sessions.opened(model, setting.device, _saving(setting, path))
        given = {entry.name for entry in (*first.get_inputs(), *first.get_overridable_initializers())}
        del first  # two of them would take twice the memory
        made = onnx.load(path, load_external_data=False)
        _keep_inputs(made.graph, given)
        told = change(made.graph)
        if told is None:
            return None
        return open_session(made, replace(setting, folder=path.parent), Optimisation.NONE), told


def _keep_inputs(graph: onnx.GraphProto, given: Container[str]) -> None:
    """Leaves out inputs that no run can be given: defaults of some were folded into what reads them."""
    kept = [entry for entry in graph.input if entry.name in given]
    del graph.input[:]
    graph.input.extend(kept)


def _options(setting: Setting, optimisation: Optimisation) -> Any:
    runtime, options = sessions.onnxruntime(), sessions.session_options(setting.libraries)
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, optimisation.value)
    options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED
    if 1 < setting.abreast >= (os.cpu_count() or 1):
        options.intra_op_num_threads = 1
    options.enable_mem_pattern = False  # from the second run on it takes memory beside that of the first
    options.add_session_config_entry(_STOP_SPINNING, "1")  # threads that wait for a run take the CPU from us
    options.add_session_config_entry(_NO_QUANTISED, "1")  # which takes a DequantizeLinear for each reader
    if setting.folder is not None:
        options.add_session_config_entry(sessions.DATA_FOLDER, str(setting.folder))
    return options


_STOP_SPINNING = "session.force_spinning_stop"
_NO_QUANTISED = "session.disable_quant_qdq"


def _saving(setting: Setting, path: Path) -> Any:
    """Options for a session that writes what it makes of a model, with the weights in a file beside it."""
    options = _options(setting, Optimisation.ALL)
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry(_WEIGHTS, f"{path.name}.data")
    return options


_WEIGHTS = "session.optimized_model_external_initializers_file_name"
