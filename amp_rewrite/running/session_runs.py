"""One run of a session of onnxruntime, as a function of its options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Generator, Mapping
from pathlib import Path
from typing import Any

from amp_rewrite.errors import RunError
from amp_rewrite.process import fork_safe
from amp_rewrite.running import custom_ops, ort_values
from amp_rewrite.running.inputs import model_inputs


def prepared(
    session: Any, feeds: Mapping[str, Any], wanted: Container[str] | None, where: str
) -> Callable[[Any], dict[str, Any]]:
    """A run that gives the outputs by name, or those in `wanted`; it is called with its RunOptions.

    It raises RunError, at `where`, if it fails, and FeedError if that is since the feeds do not fit.
    """
    outputs = [o for o in session.get_outputs() if wanted is None or o.name in wanted]
    names = [output.name for output in outputs]
    types = {entry.name: entry.type for entry in session.get_inputs()}
    inputs = {name: ort_values.to_input_type(value, types.get(name, "")) for name, value in feeds.items()}
    plain = ort_values.BFLOAT16 not in (*types.values(), *(output.type for output in outputs))

    def results(options: Any) -> list[Any]:
        if plain:
            return session.run(names, inputs, options)
        make = fork_safe.import_module("onnxruntime").OrtValue
        values = {n: ort_values.to_ort_value(make, array, types[n]) for n, array in inputs.items()}
        found = session.run_with_ort_values(names, values, options)
        return [ort_values.from_ort_value(value) for value in found]

    def run(options: Any) -> dict[str, Any]:
        try:
            with run_errors(where):
                return dict(zip(names, results(options), strict=True))
        except RunError:
            model_inputs.refuse(session, inputs, where)
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
