"""Models as ONNX text, and what is read from models: nothing of the package is needed here.

A value that is declared (`<float[4] w>`) and that nothing makes is a weight; it is filled with numbers
that no half holds exactly. Printed text says which tensors are stored, not what is in them: float16 literals
are bit patterns in ONNX text.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
RUNS = importlib.util.find_spec("onnxruntime") is not None

Weights = Mapping[str, NDArray[np.generic]]
Draw = Callable[[onnx.TypeProto.Tensor], NDArray[np.generic]]


def model(text: str, weights: Weights | None = None) -> onnx.ModelProto:
    """The model that the text describes, valid in full; without a header it is IR 8, opset 17."""
    proto = unchecked(text, weights)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def unchecked(text: str, weights: Weights | None = None) -> onnx.ModelProto:
    """The model that the text describes, whatever the checker thinks of it."""
    text = text.strip()
    proto = onnx.parser.parse_model(text if text.startswith("<") else f"{HEADER} {text}")
    for graph in graphs(proto.graph):
        _store_weights(graph, weights or {})
    return proto


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the graphs below it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def _store_weights(graph: onnx.GraphProto, weights: Weights) -> None:
    made = {name for node in graph.node for name in node.output}
    held = {tensor.name for tensor in graph.initializer}
    for info in [i for i in graph.value_info if i.name not in made]:
        graph.value_info.remove(info)
        if info.name not in held:
            array = weights.get(info.name, numbers(info.type.tensor_type))
            graph.initializer.append(numpy_helper.from_array(array, info.name))


def numbers(kind: onnx.TypeProto.Tensor) -> NDArray[np.generic]:
    """Numbers between 0.1 and 0.9 for a tensor of that type; integers are 1, every other truth is true."""
    shape = [dim.dim_value or 2 for dim in kind.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if dtype.kind == "b":
        return (np.arange(np.prod(shape)) % 2 == 0).reshape(shape)
    if dtype.kind in "iu":
        return np.ones(shape, dtype)
    return np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32).reshape(shape).astype(dtype)


def printed(proto: onnx.ModelProto) -> str:
    """The graph as text: with what it stores, but not the numbers, and without value_info."""
    proto = ir.to_proto(ir.from_proto(proto))  # a copy without lazy fields
    for graph in graphs(proto.graph):
        del graph.value_info[:]
    text = onnx.printer.to_text(proto)
    text = text[text.index("\n>\n") + 3 :]
    return re.sub(r" =  (\{[^}]*\}|\d+|[-+.e\d]+)(?=[,>])", "", text)


def lines(text: str) -> list[str]:
    """The lines of a text without what only looks different: spaces, and the kinds of attributes."""
    text = re.sub(r": (int|float|string|tensor|graph)s? =", " =", text)
    text = re.sub(r"\s+", " ", re.sub(r"\s*([(){}<>\[\],=:])\s*", r"\1", text.strip()))
    return [line for line in re.split(r"(?<=[{}])|(?<=\))(?=[\[\w\"}])", text) if line]


def nodes(proto: onnx.ModelProto) -> list[str]:
    """Every node of every graph as `output, output = Operator(input, input)`."""
    return [
        f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)})"
        for graph in graphs(proto.graph)
        for node in graph.node
    ]


def types(proto: onnx.ModelProto) -> dict[str, str]:
    """The element type that the model says of each value and stored tensor, in all graphs."""
    names = onnx.TensorProto.DataType.Name
    found: dict[str, str] = {}
    for graph in graphs(proto.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            found[info.name] = names(info.type.tensor_type.elem_type)
        found |= {tensor.name: names(tensor.data_type) for tensor in graph.initializer}
    return found


def sizes(proto: onnx.ModelProto) -> dict[str, str]:
    """The sizes that the model says of each value that nodes make, in all graphs, as `[n,4]`."""
    return {
        info.name: f"[{','.join(dim.dim_param or str(dim.dim_value or '?') for dim in kind.shape.dim)}]"
        for graph in graphs(proto.graph)
        for info in graph.value_info
        if (kind := info.type.tensor_type).HasField("shape")
    }


def stored(proto: onnx.ModelProto) -> dict[str, NDArray[np.generic]]:
    """What is stored: initializers, and tensors of Constant and ConstantOfShape, by their names."""
    found: dict[str, NDArray[np.generic]] = {}
    for graph in graphs(proto.graph):
        found |= {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        for node in graph.node:
            for attribute in node.attribute if node.op_type in ("Constant", "ConstantOfShape") else ():
                if attribute.name == "value":
                    found[node.output[0]] = numpy_helper.to_array(attribute.t)
    return found


def agree(before: onnx.ModelProto, after: onnx.ModelProto, close: float = 1e-2) -> None:
    """Asserts that both models load in onnxruntime and give about the same; nothing where it is missing."""
    if not RUNS:
        return
    expected, found = run(before), run(after)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(
            np.asarray(found[name], np.float32),
            np.asarray(array, np.float32),
            rtol=close,
            atol=close,
            err_msg=name,
        )


def run(proto: onnx.ModelProto, draw: Draw = numbers) -> dict[str, NDArray[np.generic]]:
    """The outputs of a model in onnxruntime's CPU provider, for inputs between 0.1 and 0.9, or as drawn."""
    import onnxruntime  # noqa: PLC0415 - the tests of the rewrite run without it

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    kinds = {info.name: info.type.tensor_type for info in proto.graph.input}
    names = [output.name for output in session.get_outputs()]
    feeds = {given.name: draw(kinds[given.name]) for given in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))
