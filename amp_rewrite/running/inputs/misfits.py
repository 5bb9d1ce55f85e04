"""Why a sample that was given does not fit a session: asked once a run has failed on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.arguments import shown
from amp_rewrite.errors import FeedError
from amp_rewrite.running.inputs import coerce
from amp_rewrite.running.inputs.model_inputs import Input, Structure

_TENSOR = re.compile(r"^tensor\((\w+)\)$")
"""How onnxruntime writes the type of a tensor."""


def refuse(session: Any, feeds: Mapping[str, Any], where: str) -> None:
    """FeedError for an input that is unknown, missing, no array, or of another type or shape."""
    inputs = {declared.name: declared for declared in _declared(session)}
    coerce.refuse_unknown(feeds, inputs, where)
    for name, declared in inputs.items():
        if name in feeds:
            _refuse_value(declared, feeds[name], where)
        elif not declared.has_default:
            raise declared.error("is missing", where=where, remedy=f"add it, as {declared.type_text}")


def _refuse_value(declared: Input, value: Any, where: str) -> None:
    if declared.structure is not Structure.TENSOR:
        return
    if not isinstance(value, (np.ndarray, np.generic)):
        problem = f"is {declared.type_text}, but {shown(value)} was given, which is no NumPy array"
        raise declared.error(problem, where=where, remedy="give a numpy.ndarray (tensor.numpy() of a tensor)")
    try:
        coerce.coerce(declared, value, where)
    except FeedError as error:
        remedy = "give it in that type and shape"
        raise FeedError(error.problem, where=error.where, remedy=remedy) from error


def _declared(session: Any) -> Iterator[Input]:
    """The inputs of a session of onnxruntime, those with a default last."""
    for entry in session.get_inputs():
        yield _input(entry, has_default=False)
    for entry in session.get_overridable_initializers():
        yield _input(entry, has_default=True)


def _input(entry: Any, *, has_default: bool) -> Input:
    found = _TENSOR.match(entry.type)
    name = "FLOAT" if found is None else found[1].upper()
    dtype = ir.DataType[name] if name in ir.DataType.__members__ else None
    return Input(
        value=ir.Value(name=entry.name),
        name=entry.name,
        structure=Structure.OTHER if found is None else Structure.TENSOR,
        dtype=dtype,
        dims=tuple(entry.shape) if entry.shape else None,
        has_default=has_default,
    )
