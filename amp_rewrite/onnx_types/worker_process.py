"""The process of `worker`: answers one question after another, until its input ends. Needs onnx alone."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx import checker, defs, shape_inference


def complaint(model: bytes | str, *, full: bool) -> str:
    """What onnx's checker has against a model, given as bytes or as a path; nothing if it has nothing."""
    try:
        checker.check_model(model, full_check=full)
    except Exception as error:  # the checker raises errors of many kinds, its C++ core's included
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def infer_model(model: bytes) -> dict[str, bytes]:
    """The types of the values of a model's main graph by name, as onnx infers them; none where it fails."""
    try:
        inferred = shape_inference.infer_shapes(onnx.ModelProto.FromString(model))
    except Exception:  # as above
        return {}
    return {info.name: info.type.SerializeToString() for info in inferred.graph.value_info}


def infer_node(
    node: bytes,
    domain: str,
    version: int,
    types: Mapping[str, bytes],
    data: Mapping[str, bytes],
    imports: Mapping[str, int],
) -> dict[str, bytes]:
    """The types of the outputs of a node, as one of a schema's version, by name; none where onnx cannot say.

    `types` are those of what it reads, and `data` what is known of it, by name.
    """
    proto = onnx.NodeProto.FromString(node)
    context = checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {**imports, domain: version}
    try:
        schema = defs.get_schema(proto.op_type, version, domain)
        checker.check_node(proto, context)  # the inference trusts what it is given
        found = shape_inference.infer_node_outputs(
            schema,
            proto,
            {name: onnx.TypeProto.FromString(kind) for name, kind in types.items()},
            {name: onnx.TensorProto.FromString(tensor) for name, tensor in data.items()},
            opset_imports=[onnx.helper.make_opsetid(*pair) for pair in imports.items()],
        )
    except Exception:  # onnx raises what it likes where sizes do not fit together
        return {}
    return {name: kind.SerializeToString() for name, kind in found.items()}


Question = tuple[str, tuple[Any, ...], Mapping[str, Any]]
"""The name of a function, and its arguments."""

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (complaint, infer_model, infer_node)
}


GREETING = b"amp-rewrite asks onnx"
"""What comes before all answers: that this process is the one that is meant, and has onnx."""


def serve() -> None:
    """Reads questions and writes answers; what onnx itself prints goes elsewhere.

    Who interrupts a whole group of processes means the one that asks: it ends this one, if it ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    own.write(GREETING)
    own.flush()
    while True:
        try:
            name, arguments, named = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_FUNCTIONS[name](*arguments, **named), own)
        own.flush()


if __name__ == "__main__":
    serve()
