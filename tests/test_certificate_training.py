"""The certificate of train steps: a loss scale is taken out, proved, and what is wrong with one is found."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from amp_rewrite import certify, training
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.training import DynamicLossScale, FixedLossScale
from tests import train_steps
from tests.commands import failure, run
from tests.test_training import SCALES, TRAPS
from tests.test_training_refusals import ODD
from tests.train_steps import NAMES, step


@pytest.mark.parametrize("scale", [*SCALES, FixedLossScale(1000.0)], ids=["fixed", "dynamic", "odd"])
@pytest.mark.parametrize("trap", TRAPS)
def test_a_loss_scale_is_proved(trap, scale):
    """Inserted alone, and in half: the step is the original, whatever it is made of."""
    model = step(TRAPS[trap])
    for result in (
        training.insert_loss_scale(model, None, scale),
        training.rewrite_train_step(model, loss_scale=scale),
    ):
        found = certify(model, result.model)
        assert found.proved, found
        assert found.licences[Licence.LOSS_SCALE] >= len(result.step.frontier)
        assert (Licence.SKIPPED in found.licences) == isinstance(scale, DynamicLossScale)


@pytest.mark.parametrize("name", ODD)
def test_odd_steps_are_proved(name):
    """The frontier is an output, the only output, or in a body."""
    written, state, gradients = ODD[name]
    spec = training.TrainSpec("loss", "loss_grad", state, gradients)
    model = step(written)
    for scale in (64, DynamicLossScale(64, 2)):
        found = certify(model, training.insert_loss_scale(model, spec, scale).model)
        assert found.proved, found


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["graph_rewrite", "casting"])
@pytest.mark.parametrize("name", NAMES)
def test_real_steps_are_proved(name, implementation):
    """In both half types, with every kind of scale."""
    model, _ = train_steps.real(name)
    for to in ("float16", "bfloat16"):
        for scale, skips in (("dynamic", False), (1024, False), (3.0, True), (None, False)):
            result = training.rewrite_train_step(model, to, scale, implementation, skip_nonfinite=skips)
            found = certify(model, result.model)
            assert found.proved, found


def scaled(scale=None):
    """A step, and the step with a dynamic scale."""
    model = step(TRAPS["clipped by norm, L2, momentum and decay"])
    return model, training.insert_loss_scale(model, None, scale or DynamicLossScale(64, 2)).model


def made(model, name):
    """The node that makes a value."""
    return next(node for node in model.graph.node if name in node.output)


def rewired(name, port, to):
    """A mutation: an input of the node that makes a value becomes another."""

    def mutate(model):
        made(model, name).input[port] = to

    return mutate


def stored(name, number):
    """A mutation: a stored number becomes another."""

    def mutate(model):
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        old = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(number, old.dtype), name))

    return mutate


def bypassed(name):
    """A mutation: who reads a value reads the first input of its node."""

    def mutate(model):
        source = made(model, name).input[0]
        for node in model.graph.node:
            node.input[:] = [source if given == name else given for given in node.input]

    return mutate


def declared(**changes):
    """A mutation of what the metadata say of the scale."""

    def mutate(model):
        for prop in model.metadata_props:
            if prop.key.endswith("loss_scale"):
                told = json.loads(prop.value)
                prop.value = json.dumps({**told, "scale": {**told["scale"], **changes}})

    return mutate


def kept_as(name):
    """A mutation: the first weights keep another input, which the metadata say is theirs."""

    def mutate(model):
        made(model, "w1_new").input[2] = name
        for prop in model.metadata_props:
            if prop.key.endswith("state"):
                pairs = [[name if after == "w1_new" else one, after] for one, after in json.loads(prop.value)]
                prop.value = json.dumps(pairs)

    return mutate


def swapped(model):
    """Old state and new state change places."""
    node = made(model, "w1_new")
    node.input[1], node.input[2] = node.input[2], node.input[1]


def twice(model):
    """A gradient is divided by the scale twice."""
    first = made(model, "dw1__unscaled")
    again = helper.make_node("Mul", [first.output[0], first.input[1]], ["again"])
    for node in model.graph.node:
        if node is not first:
            node.input[:] = ["again" if given == first.output[0] else given for given in node.input]
    model.graph.node.insert(list(model.graph.node).index(first) + 1, again)


def some_axes(model):
    """A gradient is summed over one axis: there are as many flags as it has columns."""
    made(model, "dw1__unscaled__l1").attribute.append(helper.make_attribute("axes", [0]))


def of_some_axes(model):
    """The scale has an axis, which it gives to what it multiplies."""
    info = next(info for info in model.graph.input if info.name == "loss_scale")
    info.type.tensor_type.shape.dim.add(dim_value=1)


def by_default(model):
    """Who gives no scale gets the one that is stored."""
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "loss_scale"))


MUTANTS = {
    "a gradient stays scaled": bypassed("dw1__unscaled"),
    "a gradient is divided twice": twice,
    "a gradient is multiplied": rewired("dw2__unscaled", 1, "loss_scale"),
    "the seed is not scaled": bypassed("loss_grad__scaled"),
    "the reciprocal is of something else": stored("loss_scale__one", 2.0),
    "another state is kept": rewired("w1_new", 2, "m1"),
    "state of two outputs is kept": kept_as("m1"),
    "state of another shape is kept": kept_as("x"),
    "state is kept in good steps": swapped,
    "the new state is another": rewired("w1_new", 1, "m1_new__kept"),
    "a gradient is not looked at": lambda model: made(model, "grads_finite__sum").input.pop(),
    "another value is looked at": rewired("dw1__unscaled__small", 0, "w1"),
    "infinity is a number": stored("grads_finite__infinity", 1e30),
    "sums are not small": stored("grads_finite__tiny", -1.0),
    "sums overflow": stored("grads_finite__tiny", 1.0),
    "a part of a gradient is looked at": some_axes,
    "the scale is not one number": of_some_axes,
    "the scale has a default": by_default,
    "a constant for a flag": rewired("grads_finite", 0, "good_steps__waits"),
    "the period is another": stored("good_steps__period", 3),
    "the scale grows otherwise": stored("loss_scale__multiplier", 4.0),
    "the scale shrinks to less": stored("loss_scale__least", 0.5),
    "the scale does not shrink": rewired("loss_scale.new", 2, "loss_scale"),
    "steps are not counted": rewired("good_steps.new", 1, "good_steps"),
    "another multiplier is declared": declared(multiplier=8.0),
    "the scale is read by the loss": rewired("p", 0, "loss_scale__larger"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_wrong_with_a_scale_is_found(name):
    """Nothing is proved where the scale does not go in, come out or move as it should."""
    model, result = scaled()
    before = result.SerializeToString()
    MUTANTS[name](result)
    assert result.SerializeToString() != before
    found = certify(model, result)
    assert not found.proved
    assert found.problem


FIXED = {
    "the reciprocal is another": stored("loss_scale__reciprocal", 1 / 32),
    "another scale is declared": declared(value=32.0),
    "the scale is another": stored("loss_scale", 32.0),
    "a gradient stays scaled": bypassed("dw1__unscaled"),
}


@pytest.mark.parametrize("name", FIXED)
def test_what_is_wrong_with_a_fixed_scale_is_found(name):
    """The numbers that are stored are the declared scale, its reciprocal, and its product with the seed."""
    model = step()
    result = training.rewrite_train_step(model, loss_scale=64).model
    assert certify(model, result).proved
    FIXED[name](result)
    assert not certify(model, result).proved


DYNAMIC = {
    "scale": {"increment_period": 2, "multiplier": 2.0},
    "state": {"scale": ["loss_scale", "n"], "good_steps": ["g", "h"], "finite": "f"},
    "powers": {},
}
DAMAGED = [
    *("{", "[]", '{"scale": {}}', '{"scale": {}, "state": {"scale": 3}}', "[" * 10_000),
    *(
        json.dumps({**DYNAMIC, part: {**DYNAMIC[part], name: value}})
        for part, name, values in (
            ("scale", "multiplier", ["x", 1e300, 10**400, -2.0, None]),
            ("scale", "increment_period", ["x", 2.5, 10**30]),
            ("state", "scale", [["x"], [[1], "x"]]),
            ("state", "finite", [[1]]),
        )
        for value in values
    ),
    json.dumps({**DYNAMIC, "state": {"scale": ["loss_scale", "n"], "finite": None}}),
    *(json.dumps({**DYNAMIC, "powers": powers}) for powers in (None, [1], {"a": "x"}, {"a": 10**6})),
]
"""What may stand in metadata. A scale without a count of steps would leave its rule unproved."""


@pytest.mark.parametrize("value", DAMAGED, ids=lambda text: text[:90])
def test_damaged_metadata_prove_nothing(value):
    """It is said, without a traceback."""
    model, result = scaled()
    next(prop for prop in result.metadata_props if prop.key.endswith("loss_scale")).value = value
    assert certify(model, result).problem == "what it declares of its loss scale cannot be read"


SCALED = """<ir_version: 8, opset_import: ["": 10]> g (float[2] x) => (float[3] y) <float s, float r> {
    m = Mul (x, s) p = Pad <pads = [1, 0], value = %s> (m) y = Mul (p, r) }"""
PADDED = """<ir_version: 8, opset_import: ["": 10]> g (float[2] x) => (float[3] y) {
    y = Pad <pads = [1, 0], value = %s> (x) }"""


@pytest.mark.parametrize(
    ("scale", "value", "proved"),
    [(64.0, 0.0, True), (64.0, 5.0, False), *((s, 0.0, False) for s in (np.inf, np.nan, 0.0, 1e-40, -2.0))],
)
def test_a_fixed_scale_can_be_divided_again_and_scales_all(scale, value, proved):
    """What is infinite, or added to what is scaled, stays."""
    original, result = (onnx.parser.parse_model(text % value) for text in (PADDED, SCALED))
    with np.errstate(all="ignore"):
        numbers = {"s": np.float32(scale), "r": np.float32(1) / np.float32(scale)}
    del result.graph.initializer[:]
    result.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(n), name) for name, n in numbers.items()
    )
    told = {"scale": {"value": scale}, "state": {"finite": None}, "powers": {"s": 1, "r": -1}}
    result.metadata_props.add(key="amp_rewrite.train.loss_scale", value=json.dumps(told))
    assert certify(original, result).proved is proved


def test_a_scale_that_both_have_is_a_part_of_the_model():
    """A step that had a loss scale is rewritten without another."""
    _, model = scaled()
    result = training.rewrite_train_step(model, loss_scale=None)
    assert Licence.LOSS_SCALE not in certify(model, result.model).licences
    assert certify(model, result.model).proved


def test_the_command_proves_what_it_writes(tmp_path):
    """The summary says so, and a result that is not proved is not written."""
    onnx.save(step(), tmp_path / "step.onnx")
    said = run("train", tmp_path / "step.onnx", "-o", tmp_path / "half.onnx", "--json", tmp_path / "r.json")
    assert "proved equal but for precision" in said.output
    assert json.loads((tmp_path / "r.json").read_text())["certificate"]["licences"]["loss scale"] == 3
    said = run("train", tmp_path / "step.onnx", "-o", tmp_path / "b.onnx", "--skip=certify")
    assert "proof" not in said.output


def test_a_result_that_is_not_proved_is_not_written(tmp_path, monkeypatch):
    """A fault of ours is one line, and leaves nothing behind."""
    onnx.save(step(), tmp_path / "step.onnx")
    monkeypatch.setattr("amp_rewrite.training.insertion.redirect", lambda *_: None)
    said = failure("train", tmp_path / "step.onnx", "-o", tmp_path / "half.onnx")
    assert "please report this fault" in said
    assert not (tmp_path / "half.onnx").exists()
