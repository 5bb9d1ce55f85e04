"""ONNX text in, ONNX text out: what the tests of single passes speak.

A value that is declared (`<float[4] w>`) and that nothing makes is a weight; the helper fills it with
numbers that no half holds exactly. Expected text says which tensors are stored, not what is in them: float16
literals are bit patterns in ONNX text.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.pipeline import Result, analyze, rewrite
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import Options
from amp_rewrite.policy.reasons import in_words

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
calls (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) {
  a = MatMul (x, w)
  y = local.twice (a)
}
<domain: "local", opset_import: ["" : 17]>
twice (v) => (u) { u = Add (v, v) }
"""
"""A model with a function of its own."""

DOWNSTREAM = """held (float[4, 8] x) => (float[4, 8] y) <float[8, 8] w, float[8] shift, float two = {2.0}> {
  [before] a = MatMul (x, w)
  [square] b = Pow (a, two)
  [shift] c = Add (b, shift)
  [root] d = Sqrt (c)
  [squash] e = Tanh (d)
  [after] y = MatMul (e, w)
}"""
"""A denied node between two products, and three that stay float32 because of it."""

RUNS = importlib.util.find_spec("onnxruntime") is not None

Weights = Mapping[str, NDArray[np.generic]]


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


def complaints(result: Result) -> tuple[str, ...]:
    """The warnings of a result, but that so small a model is predicted to be no faster."""
    return tuple(told for told in result.report.warnings if not told.startswith("predicted"))


def rewritten(proto: onnx.ModelProto, options: Options | None = None) -> Result:
    """The result, valid in full and without complaints, but that so small a model may be no faster."""
    result = rewrite(proto, options)
    assert result.report.broken == ()
    assert complaints(result) == ()
    onnx.checker.check_model(result.model, full_check=True)
    return result


def becomes(
    before: str,
    after: str,
    options: Options | None = None,
    *,
    weights: Weights | None = None,
    runs: bool = True,
    close: float = 1e-2,
) -> Result:
    """Asserts that one text is rewritten to the other, and that both compute about the same.

    `runs` is for operators that onnxruntime's CPU provider has no kernel for, and for models that it refuses.
    """
    proto = model(before, weights)
    result = rewritten(proto, options)
    found, expected = lines(printed(result.model)), lines(after)
    assert found == expected, "\n".join(difflib.ndiff(expected, found))
    if runs:
        agree(proto, result.model, close)
    return result


def stays(
    before: str,
    options: Options | None = None,
    *,
    weights: Weights | None = None,
    runs: bool = True,
) -> Result:
    """Asserts that nothing changes: the result is the model that came in."""
    proto = model(before, weights)
    result = rewritten(proto, options)
    assert result.model == proto
    if runs:
        agree(proto, result.model, 0.0)
    return result


def kept(text: str, options: Options | None = None, *, weights: Weights | None = None) -> dict[str, str]:
    """Why an analysis keeps nodes in float32: the reasons, by the name of the node's first output."""
    analysis = analyze(model(text, weights), options)
    entries = analysis.painting.entries
    return {
        str(unit.node.outputs[0].name): in_words(entries[unit.index].evidence)
        for unit in analysis.graph.units
        if entries[unit.index].authority in (Authority.RANGE, Authority.RUNTIME_BUG, Authority.QUANTISED)
    }


def in_half(text: str, options: Options | None = None, *, weights: Weights | None = None) -> set[str]:
    """The nodes that have a unit in half, by the name of their first output."""
    analysis = analyze(model(text, weights), options)
    halves = (u for u in analysis.graph.units if analysis.painting.is_half(u.index))
    return {str(unit.node.outputs[0].name) for unit in halves}


def values_in_half(analysis: Analysis) -> set[str]:
    """The names of the values that half units make."""
    graph, painting = analysis.graph, analysis.painting
    return {str(value.name) for unit in graph.units if painting.is_half(unit.index) for value in unit.defs}


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


def stored(proto: onnx.ModelProto) -> dict[str, NDArray[np.generic]]:
    """What is stored: initializers and tensors of Constant nodes, by the names they are read by."""
    found: dict[str, NDArray[np.generic]] = {}
    for graph in graphs(proto.graph):
        found |= {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        for node in graph.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
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


def run(proto: onnx.ModelProto) -> dict[str, NDArray[np.generic]]:
    """The outputs of a model in onnxruntime's CPU provider, for inputs between 0.1 and 0.9."""
    import onnxruntime  # noqa: PLC0415 - the tests of the rewrite run without it

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    kinds = {info.name: info.type.tensor_type for info in proto.graph.input}
    names = [output.name for output in session.get_outputs()]
    feeds = {given.name: numbers(kinds[given.name]) for given in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))
