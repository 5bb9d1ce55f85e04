"""Models prepared for repeated, timed runs: session open, inputs converted and on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from amp_rewrite.running import ort_values, session_runs, sessions
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.sessions import Device, Feeds

PreparedRun = Callable[[], Any]
"""Runs a model once, and returns when the outputs are complete."""


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A model to time: `name` is for display, `tf32` lets CUDA round float32 products to TF32, and
    `libraries` are those of custom operators.
    """

    name: str
    path: Path
    tf32: bool = False
    libraries: Libraries = ()


def open_timed_session(model: TimedModel, device: Device, profile: Path | None = None) -> Any:
    """A session; with `profile`, one that writes a profile to a file with that prefix.

    Raises ModelError if onnxruntime rejects the model.
    """
    options = sessions.session_options(model.libraries)
    options.add_session_config_entry(*_STOP_SPINNING)
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    return sessions.create(str(model.path), options, device, where=model.path, tf32=model.tf32)


_STOP_SPINNING = ("session.force_spinning_stop", "1")
"""Worker threads stop spinning at the end of a run, and leave the processor to the next model."""


def prepare(
    session: Any, feeds: Feeds, device: Device, where: str | Path = "", options: Any = None
) -> PreparedRun:
    """A function that runs a session on these inputs, and raises RunError at `where` if that fails.

    Tensors are handed over once: on CUDA they are bound, so that they are on the device if the model reads
    them there, and the outputs stay on it. Other inputs are handed over at each run. `options` are
    onnxruntime's RunOptions.
    """
    types = {entry.name: entry.type for entry in session.get_inputs()}
    arrays = {n: ort_values.to_input_type(value, types[n]) for n, value in feeds.items() if n in types}
    with session_runs.run_errors(where):
        run = _prepare(session, arrays, types, device, options)

    def run_once() -> None:
        with session_runs.run_errors(where):
            run()

    return run_once


def _prepare(
    session: Any, arrays: Feeds, types: Mapping[str, str], device: Device, options: Any
) -> PreparedRun:
    entries = (*session.get_inputs(), *session.get_outputs())
    if not all(e.type.startswith("tensor(") and e.type != "tensor(string)" for e in entries):
        return partial(session.run, None, arrays, options)
    make = sessions.onnxruntime().OrtValue
    values = {name: ort_values.to_ort_value(make, array, types[name]) for name, array in arrays.items()}
    if device is Device.CUDA:
        return partial(_call, arrays, session.run_with_iobinding, bind(session, values), options)
    return partial(_call, arrays, session.run_with_ort_values, None, values, options)


def _call(_arrays: Feeds, run: Callable[..., Any], *arguments: Any) -> None:
    """Calls `run` with OrtValues that share the memory of `_arrays`, which must live as long as they do."""
    run(*arguments)


def bind(session: Any, values: Feeds) -> Any:
    """An IOBinding; onnxruntime copies a bound input, once, to the device of the nodes that read it."""
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda")
    binding.synchronize_inputs()
    return binding
