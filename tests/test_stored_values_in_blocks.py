"""Large stored values are compared in blocks, from the model or from a file, and judged as wholes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite import certify
from amp_rewrite.certificate import stored_tensors, tensors
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.stored_tensors import Held

SIZE = 100


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 8 elements, two of them in a part."""
    monkeypatch.setattr(tensors, "BLOCK", 8)
    monkeypatch.setattr(stored_tensors, "PART", 16)


def compared(old, new):
    """What comes of two arrays as stored values."""
    return stored_tensors.compare(*(Held(numpy_helper.from_array(array), None) for array in (old, new)))


def test_what_holds_of_all_blocks_counts_once():
    """A value that is widened, or restored, is one."""
    exact = np.arange(SIZE, dtype=np.float32)
    rough = exact + np.float32(1e-4)
    assert compared(exact.astype(np.float16), exact).uses == {Licence.WIDENED: 1}
    assert compared(rough, rough.astype(np.float16).astype(np.float32)).uses == {Licence.RESTORED: 1}


def test_a_value_is_restored_as_a_whole():
    """A block that is rounded beside one that is not: no half model held such a value."""
    old = np.arange(SIZE, dtype=np.float32) + np.float32(1e-4)
    new = old.copy()
    new[40:48] = new[40:48].astype(np.float16).astype(np.float32)
    assert compared(old, new).problem


@pytest.mark.parametrize("power", [-30, -4, 12, 90])
def test_what_was_half_times_a_power_of_two_is_restored(power):
    """Beyond half's range and below it; unless one number is another, or half held few of the digits."""
    random = np.random.default_rng(0)
    old = np.ldexp(random.normal(0, 100, SIZE).astype(np.float32), power)

    def restored(exponent):
        return np.ldexp(np.ldexp(old, -exponent).astype(np.float16).astype(np.float32), exponent)

    new = restored(power)
    assert compared(old, new).uses == {Licence.RESTORED: 1}
    other = np.nextafter(np.ldexp(new[70], -power).astype(np.float16), np.float16(0))
    new[70] = np.ldexp(np.float32(other), power)
    assert compared(old, new).problem.startswith("element ")
    coarse = restored(power + 26)
    assert 0 < np.unique(np.abs(coarse)).size < SIZE / 2
    assert compared(old, coarse).problem


@pytest.mark.parametrize("sign", [1, -1])
def test_infinities_are_counted_in_every_block(sign):
    """Of both signs, where the original is finite."""
    old = np.full(SIZE, sign * 1e6, np.float32)
    old[50] = sign * np.inf
    with np.errstate(over="ignore"):
        found = compared(old, old.astype(np.float16))
    assert (found.problem, found.uses) == ("", {Licence.OVERFLOWED: SIZE - 1})


def packed(tmp_path, where, wrong=None):
    """A model of four-bit weights: as bytes or as numbers in the model, or in a file beside it."""
    numbers = np.arange(SIZE) % 15 - 7
    if wrong is not None:
        numbers[wrong] += 1
    weight = helper.make_tensor("w", TensorProto.INT4, [SIZE], numbers)
    raw = numpy_helper.from_array(numpy_helper.to_array(weight), "w")
    held = raw if where != "numbers" else weight
    scale = numpy_helper.from_array(np.float32(0.5), "s")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [SIZE])
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"])
    graph = helper.make_graph([node], "g", [], [y], [held, scale])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / f"{where}{wrong}.onnx"
    beside = {"save_as_external_data": True, "location": f"{path.name}.data", "size_threshold": 0}
    onnx.save(made, path, **(beside if where == "file" else {}))
    return path


@pytest.mark.parametrize("where", ["bytes", "numbers", "file"])
def test_packed_elements_are_the_same_wherever_they_are_stored(tmp_path, where):
    """Two of four bits in a byte, in the model or in a file; one that is another is found."""
    original = packed(tmp_path, "bytes")
    assert certify(original, packed(tmp_path, where)).proved
    assert certify(original, packed(tmp_path, where, wrong=70)).problem.startswith("element 70 was ")
