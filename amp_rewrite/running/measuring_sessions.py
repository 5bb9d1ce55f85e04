"""Sessions in which nodes reduce values within the run, in the order of the nodes."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device, Libraries


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
