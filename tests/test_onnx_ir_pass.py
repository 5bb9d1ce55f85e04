"""The rewrite as a pass of onnx-ir."""

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from amp_rewrite import AmpPass, Options, rewrite
from amp_rewrite.policy.options import Pins

TEXT = """<ir_version: 9, opset_import: ["": 17]> g (float[4,4] x) => (float[4,4] y) {
    [product] a = MatMul (x, x) [sum] y = Add (a, a) }"""


@pytest.fixture
def model():
    """A model of onnx-ir's."""
    return ir.from_proto(parser.parse_model(TEXT))


def text(model):
    """A model as bytes, to compare."""
    return ir.to_proto(model).SerializeToString(deterministic=True)


def test_the_pass_gives_what_the_rewrite_gives(model):
    """The pass is the rewrite: a new model, with `modified` set, and the old one as it was."""
    before = text(model)
    result = AmpPass()(model)
    assert result.modified
    assert text(result.model) == text(rewrite(model).model)
    assert text(model) == before
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)


def test_the_pass_takes_options(model):
    """Options hold for the pass; where nothing changes, it says so."""
    result = AmpPass(Options(pins=Pins(keep_full=(".*",))))(model)
    assert not result.modified
    assert text(result.model) == text(model)


def test_a_second_pass_changes_nothing(model):
    """In a sequence of passes that runs until nothing changes, this one comes to rest."""
    once = AmpPass()(model).model
    assert not AmpPass()(once).modified
