"""ONNX text in, ONNX text out: what the tests of single passes speak.

A value that is declared (`<float[4] w>`) and that nothing makes is a weight; the helper fills it with
numbers that no half holds exactly. Expected text says which tensors are stored, not what is in them: float16
literals are bit patterns in ONNX text.
"""

from __future__ import annotations

import onnx

from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.pipeline import Result, analyze, rewrite
from amp_rewrite.policy.evidence import Authority, in_words
from amp_rewrite.policy.options import Options
from tests.onnx_text import HEADER as HEADER
from tests.onnx_text import RUNS as RUNS
from tests.onnx_text import Weights as Weights
from tests.onnx_text import agree as agree
from tests.onnx_text import graphs as graphs
from tests.onnx_text import lines as lines
from tests.onnx_text import model as model
from tests.onnx_text import nodes as nodes
from tests.onnx_text import numbers as numbers
from tests.onnx_text import printed as printed
from tests.onnx_text import run as run
from tests.onnx_text import stored as stored
from tests.onnx_text import types as types
from tests.onnx_text import unchecked as unchecked

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


def complaints(result: Result) -> tuple[str, ...]:
    """The warnings of a result, but that so small a model is predicted to be no faster."""
    return tuple(told for told in result.report.warnings if " does not pay: " not in told)


def rewritten(proto: onnx.ModelProto, options: Options | None = None) -> Result:
    """The result, valid in full and without complaints, but that so small a model may be no faster."""
    result = rewrite(proto, options)
    assert result.report.broken == ()
    assert complaints(result) == ()
    onnx.checker.check_model(result.model, full_check=True)
    return result


def kept(text: str, options: Options | None = None) -> dict[str, str]:
    """Why an analysis keeps nodes in float32: the reasons, by the name of the node's first output."""
    analysis = analyze(model(text), options)
    entries = analysis.painting.entries
    return {
        str(unit.node.outputs[0].name): in_words(entries[unit.index].evidence)
        for unit in analysis.graph.units
        if entries[unit.index].authority in (Authority.RANGE, Authority.RUNTIME_BUG, Authority.QUANTISED)
    }


def in_half(text: str) -> set[str]:
    """The nodes that have a unit in half, by the name of their first output."""
    analysis = analyze(model(text))
    halves = (u for u in analysis.graph.units if analysis.painting.is_half(u.index))
    return {str(unit.node.outputs[0].name) for unit in halves}


def values_in_half(analysis: Analysis) -> set[str]:
    """The names of the values that half units make."""
    graph, painting = analysis.graph, analysis.painting
    return {str(value.name) for unit in graph.units if painting.is_half(unit.index) for value in unit.defs}
