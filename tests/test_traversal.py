"""The values that a runtime computes in every run, and those that it computes once."""

import onnx_ir as ir
import pytest

from amp_rewrite.model import dataflow, traversal
from tests.text import model

SCALED = """g (float[{sizes}] x) => (float[{sizes}] y) <float[1] one> {{
    [asks] shape = {asks} (x)
    [turns] wide = Cast <to = 1> (shape)
    [scales] scale = Sqrt (wide)
    [adds] z = Add (one, one)
    [multiplies] y = Mul (x, scale)
}}"""


@pytest.mark.parametrize(
    ("sizes", "asks", "once"),
    [
        ("2, 2", "Shape", {"asks", "turns", "scales", "adds"}),
        ("2, 2", "Size", {"asks", "turns", "scales", "adds"}),
        ("n, 2", "Shape", {"adds"}),
    ],
)
def test_known_sizes_are_computed_once(sizes, asks, once):
    """What follows from sizes that are all known is the same in every run; from open ones it is not."""
    loaded = ir.from_proto(model(SCALED.format(sizes=sizes, asks=asks)))
    found = dataflow.varying_values(traversal.nodes(loaded.graph))
    assert {node.name for node in loaded.graph if node.outputs[0] not in found} == once


def test_random_numbers_differ_from_run_to_run():
    """What is drawn is no constant, though it has no input; what is stored is one."""
    loaded = ir.from_proto(
        model(
            """g () => (float[2] y, float[2] z) <float[2] w> {
            [draws] r = RandomNormal <shape = [2]> () [adds] y = Add (r, w) [scales] z = Mul (w, w) }"""
        )
    )
    found = dataflow.varying_values(traversal.nodes(loaded.graph))
    assert {node.name for node in loaded.graph if node.outputs[0] in found} == {"draws", "adds"}
