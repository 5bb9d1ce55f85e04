"""The certificate: results that no runtime takes for a model any more, though their values would be equal."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from amp_rewrite import certify
from amp_rewrite.errors import ModelError

PLAIN = """<ir_version: %d, opset_import: ["": 8]>
    g (float[2] x, float[2] k) => (float[2] y) { h = Cast <to = 10> (x) i = Cast <to = 1> (h)
        c = Constant <value = float[2] {1, 2}> () j = Add (i, c) y = Mul (j, k) }"""
BEFORE_INPUTS_COULD_BE_CONSTANT, SINCE = 3, 8


def model(version=SINCE):
    """A model with two Casts, a Constant, and an input that is stored."""
    made = parser.parse_model(PLAIN % version)
    made.graph.initializer.append(numpy_helper.from_array(np.array([3, 4], np.float32), "k"))
    return made


def reads_more(made):
    """A Cast has a second input."""
    made.graph.node[1].input.append("x")


def constant_reads(made):
    """A Constant has an input."""
    made.graph.node[2].input.append("x")


def constant_gives_more(made):
    """A Constant has a second output."""
    made.graph.node[2].output.append("d")


def is_declared_an_integer(made):
    """What is stored is declared to be of another type."""
    made.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64


def is_declared_longer(made):
    """What is stored is declared to have another size."""
    made.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 3


def is_declared_flat(made):
    """What is stored is declared to have no axis."""
    del made.graph.input[1].type.tensor_type.shape.dim[:]


MUTATIONS = (
    reads_more,
    constant_reads,
    constant_gives_more,
    is_declared_an_integer,
    is_declared_longer,
    is_declared_flat,
)


@pytest.mark.parametrize("version", [BEFORE_INPUTS_COULD_BE_CONSTANT, SINCE])
@pytest.mark.parametrize("change", MUTATIONS, ids=lambda change: change.__name__)
def test_what_no_runtime_takes_is_not_proved(change, version):
    """It is refused, or not proved, while what was not changed is."""
    original, result = model(version), model(version)
    assert certify(original, result).proved
    change(result)
    with pytest.raises((ModelError, AssertionError)):
        assert certify(original, result).proved


def test_a_declaration_that_was_wrong_before_proves_as_much_as_it_did():
    """What the original declares of what it stores is its own fault."""
    made = model(BEFORE_INPUTS_COULD_BE_CONSTANT)
    is_declared_longer(made)
    assert certify(made, onnx.ModelProto.FromString(made.SerializeToString())).proved


@pytest.mark.parametrize("length", ["4", "12", "-8", "x"])
def test_a_length_in_a_file_that_does_not_fit_the_shape_is_refused(tmp_path, length):
    """onnxruntime does not load such a model; it does where the length is right, 0, or not there."""
    made = helper.make_graph(
        [helper.make_node("Identity", ["t"], ["y"])], "g", [], [helper.make_tensor_value_info("y", 1, [2])]
    )
    (tmp_path / "w.bin").write_bytes(bytes(16))

    def path(**said):
        model = helper.make_model(made)
        tensor = TensorProto(name="t", dims=[2], data_type=1, data_location=TensorProto.EXTERNAL)
        for key, value in {"location": "w.bin", **said}.items():
            tensor.external_data.add(key=key, value=value)
        model.graph.initializer.append(tensor)
        found = tmp_path / f"{said.get('length', 'none')}.onnx"
        found.write_bytes(model.SerializeToString())
        return found

    assert all(certify(path(), path(length=right)).proved for right in ("8", "0"))
    with pytest.raises(ModelError, match="does not fit its shape"):
        certify(path(), path(length=length))
