"""Small stored values take a fast path, and are judged as others are."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from amp_rewrite import certify
from amp_rewrite.certificate import stored_tensors, tensors
from amp_rewrite.numerics.half import FLOAT16
from tests import text

COUNT = 40


def chain(wrong=None, value=1.5, last="Relu"):
    """A model of sums with small weights, and the same with halves of which one is another."""
    kind = "float" if wrong is None else "float16"
    weights = {f"w{i}": np.full(4, i, np.float32 if wrong is None else np.float16) for i in range(COUNT)}
    if wrong is not None and wrong < COUNT:
        weights[f"w{wrong}"][2] = value
    sums = " ".join(f"v{i + 1} = Add (w{i}, v{i})" for i in range(COUNT))
    stored = ", ".join(f"{kind}[4] {name}" for name in weights)
    return text.unchecked(
        f"g ({kind}[4] v0) => ({kind}[4] y) <{stored}> {{ {sums} y = {last} (v{COUNT}) }}", weights
    )


def test_right_ones_are_proved():
    """All, of either half type."""
    found = certify(chain(), chain(wrong=COUNT))
    assert found.proved, found
    assert {licence.value for licence in found.licences} == {"io types"}


@pytest.mark.parametrize("wrong", [0, 17, COUNT - 1])
def test_a_wrong_one_is_named(wrong):
    """The element, the value and the output."""
    found = certify(chain(), chain(wrong))
    assert found.problem == f"element 2 was {float(wrong)}, and is 1.5"
    assert found.place is not None
    assert (found.place.output, found.place.rewritten) == ("y", f"the stored value 'w{wrong}'")


@pytest.mark.parametrize("wrong", [(0,), (70,), (99,), (30, 31, 95)])
def test_the_first_wrong_element_of_many_blocks_is_named(monkeypatch, wrong):
    """Blocks are checked by threads, and said in their order."""
    monkeypatch.setattr(tensors, "BLOCK", 8)
    monkeypatch.setattr(stored_tensors, "PART", 16)
    monkeypatch.setattr(stored_tensors, "_SMALL", 0)
    before, after = chain(), chain(COUNT)
    for model, kind in ((before, np.float32), (after, np.float16)):
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.arange(100, dtype=kind), "w0"))
    assert certify(before, after).proved
    array = np.arange(100, dtype=np.float16)
    array[list(wrong)] += 1
    after.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w0"))
    first = wrong[0]
    assert certify(before, after).problem == f"element {first} was {first}.0, and is {first + 1}.0"


def test_a_clamped_one_is_counted():
    """As it is when it stands alone, and a mask of a softmax."""
    before, after = chain(), chain(3, np.float16(-FLOAT16.fill))
    weight = np.array([3, 3, -1e6, 3], np.float32)
    before.graph.initializer[3].CopyFrom(numpy_helper.from_array(weight, "w3"))
    assert "more than a mask" in certify(before, after).problem
    for made in (before, after):
        made.graph.node[-1].op_type = "Softmax"
        del made.graph.node[-1].input[1:]
    found = certify(before, after)
    assert found.proved == all(node.op_type in ("Add", "Softmax") for node in before.graph.node), found


def test_a_shape_that_is_another_is_no_small_value():
    """Though it has as many elements."""
    other = chain(COUNT)
    other.graph.initializer[5].dims[:] = [2, 2]
    assert certify(chain(), other).problem == "the shape [4] is [2,2]"


def test_two_half_types_are_refused():
    """Among small values as among others."""
    other = chain(COUNT)
    five = onnx.TensorProto(name="w5", dims=[4], data_type=TensorProto.BFLOAT16, raw_data=b"\xa0\x40" * 4)
    other.graph.initializer[5].CopyFrom(five)
    assert certify(chain(), other).problem == "values are stored in two half types"
