"""The names, types and shapes of the inputs and outputs of two models, and their differences."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

import onnx

from amp_rewrite.policy.options import IOTypes
from amp_rewrite.running.sessions import Runnable


def wrongly_declared(models: tuple[Runnable, Runnable], before: Any, after: Any) -> dict[str, str]:
    """A warning, by name, for each output whose inferred shape differs from what both models declare.

    onnxruntime reports either shape, so that different shapes in the sessions do not mean that the models
    differ.
    """
    differing = _reshaped(before, after)
    old, new = map(_declared, models) if differing else ({}, {})
    return {
        was.name: f"output '{was.name}' declares the shape {declared}, and onnxruntime finds {inferred}"
        for was, now in differing
        if (declared := old.get(was.name)) is not None and declared == new.get(was.name)
        for inferred in (now.shape if was.shape == declared else was.shape,)
    }


def undeclared(model: Runnable, before: Any, after: Any) -> set[str]:
    """The outputs of which the two sessions infer different shapes, and of which the model declares none.

    onnxruntime knows more of a result, whose values declare shapes, and calls what it does not know a scalar.
    """
    differing = {was.name for was, _ in _reshaped(before, after)}
    return differing - _declared(model).keys() if differing else set()


def _reshaped(before: Any, after: Any) -> list[tuple[Any, Any]]:
    pairs = zip(before.get_outputs(), after.get_outputs(), strict=False)
    return [(was, now) for was, now in pairs if was.name == now.name and was.shape != now.shape]


def _declared(model: Runnable) -> dict[str, list[int | str | None]]:
    """The declared shapes of a model's outputs, in onnxruntime's form."""
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
    return {
        info.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape.dim
        ]
        for info in proto.graph.output
        if info.type.tensor_type.HasField("shape")
        for shape in (info.type.tensor_type.shape,)
    }


def differences(before: Any, after: Any, io: IOTypes, exempt: Container[str]) -> Iterator[str]:
    """The differences of the second session from the first in names, types and shapes, one sentence each;
    not in the shapes of the outputs that are `exempt`.
    """
    for side in ("inputs", "outputs"):
        old, new = (getattr(session, f"get_{side}")() for session in (before, after))
        if [entry.name for entry in old] != [entry.name for entry in new]:
            yield f"the {side} are {_names(new)}, and were {_names(old)}"
            continue
        for was, now in zip(old, new, strict=True):
            halved = io is IOTypes.HALF and {was.type, now.type} <= _HALF_OR_FLOAT
            if was.type != now.type and not halved:
                yield f"'{was.name}' is {now.type}, and was {was.type}"
            if was.shape != now.shape and (side == "inputs" or was.name not in exempt):
                yield f"'{was.name}' has the shape {now.shape}, and had {was.shape}"


_HALF_OR_FLOAT = {"tensor(float)", "tensor(float16)", "tensor(bfloat16)"}


def _names(entries: Iterable[Any]) -> str:
    return ", ".join(f"'{entry.name}'" for entry in entries)
