"""A model made ready to be run again and again: session open, inputs where they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from amp_rewrite.errors import ModelError, RunError
from amp_rewrite.running import sessions, values
from amp_rewrite.running.sessions import Device, Feeds

Runner = Callable[[], Any]
"""Runs a model once, and returns when its outputs are there."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to be timed, and how: `name` is for people, `tf32` lets CUDA round float32 products to TF32."""

    name: str
    path: Path
    tf32: bool = False


def open_subject(subject: Subject, device: Device, profile: Path | None = None) -> Any:
    """A session of its own; with `profile`, one that writes a profile to files that begin so.

    Raises ModelError when onnxruntime refuses the model.
    """
    runtime = sessions.onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = sessions.ERRORS_ONLY
    options.add_session_config_entry(*_STAND_BACK)
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    try:
        return runtime.InferenceSession(
            str(subject.path), options, providers=_providers(device, tf32=subject.tf32)
        )
    except Exception as error:  # onnxruntime has no common class for its errors
        problem = f"onnxruntime refuses the model ({sessions.first_line(error)})"
        raise ModelError(problem, where=subject.path) from error


_STAND_BACK = ("session.force_spinning_stop", "1")
"""Threads that wait for work stop spinning when a run ends, and leave the processor to the next model."""


def _providers(device: Device, *, tf32: bool) -> list[Any]:
    if device is Device.CPU:
        return ["CPUExecutionProvider"]
    return [("CUDAExecutionProvider", {"use_tf32": str(int(tf32))}), "CPUExecutionProvider"]


def runner(session: Any, feeds: Feeds, device: Device, where: str | Path = "", options: Any = None) -> Runner:
    """Runs a session on these inputs; RunError, which names the model's path in `where`, when that fails.

    Tensors are handed over once: on CUDA they are bound, so that they lie on the device where the model
    reads them there, and the outputs stay on it. What is no tensor goes over with every run. `options` are
    onnxruntime's RunOptions.
    """
    types = {entry.name: entry.type for entry in session.get_inputs()}
    given = {name: values.typed(value, types[name]) for name, value in feeds.items() if name in types}
    with _refused(where):
        run = _run_of(session, given, types, device, options)

    def guarded() -> None:
        with _refused(where):
            run()

    return guarded


@contextlib.contextmanager
def _refused(where: str | Path) -> Generator[None]:
    try:
        yield
    except Exception as error:  # as above
        problem = f"the run failed ({sessions.first_line(error)})"
        raise RunError(problem, where=where, remedy="give inputs that fit with `samples`") from error


def _run_of(session: Any, given: Feeds, types: Mapping[str, str], device: Device, options: Any) -> Runner:
    entries = (*session.get_inputs(), *session.get_outputs())
    if not all(_is_plain(entry.type) for entry in entries):
        return partial(session.run, None, given, options)
    bound = {
        name: values.to_value(sessions.onnxruntime().OrtValue, array, types[name])
        for name, array in given.items()
    }
    if device is Device.CUDA:
        return partial(_run_bound, session, _bound(session, bound), given, options)
    return partial(_run_values, session, bound, given, options)


def _run_values(session: Any, values: Feeds, _arrays: Feeds, options: Any) -> None:
    """Runs on values that lie in the memory of `_arrays`, which must live as long as they do."""
    session.run_with_ort_values(None, values, options)


def _run_bound(session: Any, binding: Any, _arrays: Feeds, options: Any) -> None:
    """The same for a binding; what the CPU reads stays in those arrays."""
    session.run_with_iobinding(binding, options)


def _is_plain(kind: str) -> bool:
    return kind.startswith("tensor(") and kind != "tensor(string)"


def _bound(session: Any, values: Feeds) -> Any:
    """A binding; onnxruntime copies a bound input, once, to the device of the nodes that read it."""
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda")
    binding.synchronize_inputs()
    return binding
