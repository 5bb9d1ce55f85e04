"""The child of `inference`: answers one question after another, until its input ends. Needs onnx alone."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

import onnx
from onnx import checker, defs, shape_inference


def answer(question: dict[str, Any]) -> dict[str, bytes]:
    """The types of a node's outputs by name; none where onnx cannot say."""
    domain, version, imports = question["domain"], question["version"], question["imports"]
    node = onnx.NodeProto.FromString(question["node"])
    context = checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {**imports, domain: version}
    try:
        schema = defs.get_schema(node.op_type, version, domain)
        checker.check_node(node, context)  # the inference trusts what it is given
        found = shape_inference.infer_node_outputs(
            schema,
            node,
            {name: onnx.TypeProto.FromString(kind) for name, kind in question["types"].items()},
            {name: onnx.TensorProto.FromString(data) for name, data in question["data"].items()},
            opset_imports=[onnx.helper.make_opsetid(*pair) for pair in imports.items()],
        )
    except Exception:  # onnx raises what it likes where sizes do not fit together
        return {}
    return {name: kind.SerializeToString() for name, kind in found.items()}


def serve() -> None:
    """Reads questions and writes answers; what onnx itself prints goes elsewhere."""
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            question = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(answer(question), own)
        own.flush()


if __name__ == "__main__":
    serve()
