"""What a model says twice and otherwise is refused in one line; what it says twice is read once."""

import copy

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from amp_rewrite import Options, certify, measure_coverage, rewrite
from amp_rewrite.errors import ModelError
from tests import text

UNCHECKED = Options(check=False, metadata=False)
PRODUCT = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
    k = Constant <value_float = 2.0> () h = MatMul (x, x)  m = MatMul (h, w) y = Mul (m, k) }"""


def weight(number):
    """A weight of one number."""
    return numpy_helper.from_array(np.full((4, 4), number, np.float32), "w")


def sparse_weight():
    """A sparse weight of the same name."""
    values = numpy_helper.from_array(np.array([0.5, 0.25], np.float32), "w")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 6])), [4, 4])


def with_two_weights():
    """A weight is stored twice: onnxruntime 1.32 takes the last of small ones, and the first of large."""
    made = text.model(PRODUCT)
    made.graph.initializer.append(weight(2))
    return made


def with_a_sparse_weight():
    """A weight is also stored as a sparse one."""
    made = text.model(PRODUCT)
    made.graph.sparse_initializer.append(sparse_weight())
    return made


def with_two_numbers():
    """A Constant gives two numbers: onnxruntime takes the first, and onnx-ir the last."""
    made = text.model(PRODUCT)
    made.graph.node[0].attribute.append(helper.make_attribute("value_float", 5.0))
    return made


def with_two_functions():
    """A function is there twice."""
    made = onnx.parser.parse_model(text.FUNCTIONS)
    made.functions.append(copy.deepcopy(made.functions[0]))
    made.functions[1].node[0].op_type = "Mul"
    return made


SAID = {
    with_two_weights: "stores 'w' twice, with different values",
    with_a_sparse_weight: "stores 'w' twice, with different values",
    with_two_numbers: "with two attributes 'value_float'",
    with_two_functions: "has two functions '.*twice'",
}


@pytest.mark.parametrize("make", SAID, ids=lambda make: make.__name__)
def test_a_contradiction_is_refused(make):
    """Both by a rewrite and by the certificate: a runtime may read either."""
    for call in (lambda made: rewrite(made, UNCHECKED), lambda made: certify(made, made)):
        with pytest.raises(ModelError, match=SAID[make]):
            call(make())


def test_a_weight_that_is_there_twice_is_left_once():
    """With the same values, whichever counts."""
    made = with_two_weights()
    made.graph.initializer[0].CopyFrom(weight(2))
    result = rewrite(made, UNCHECKED)
    assert len(result.model.graph.initializer) < len(made.graph.initializer)
    assert result.report.certificate.proved
    text.agree(made, result.model)


def test_a_configuration_of_devices_without_a_name_is_left_out():
    """As onnx-ir leaves it out, whose IR version has none: where shapes are inferred, nothing ends there."""
    made = text.unchecked("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[3,2,n] x) => (float[3,n,1] y) <int64[1] o = {2}> { y = ReduceL1 (x, o) }""")
    made.graph.node[0].device_configurations.add(pipeline_stage=1)
    assert measure_coverage(made).nodes.total == 1
