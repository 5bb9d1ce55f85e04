"""What moves values and what computes with them."""

import onnx_ir as ir
import pytest

from amp_rewrite.model.patterns import effective_op
from amp_rewrite.operators.catalogue import MOVERS


def node(operator, **attributes):
    """A node with these attributes, in no graph."""
    return ir.node(operator, [ir.Value(), ir.Value(), ir.Value()], attributes)


@pytest.mark.parametrize("scatter", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize(
    ("reduction", "operator", "moving"),
    [("add", "Add", False), ("mul", "Mul", False), ("max", "Max", True), ("min", "Min", True)],
)
def test_a_scatter_with_a_reduction_acts_as_that(scatter, reduction, operator, moving):
    """A scatter that adds or multiplies makes new values; one that takes the larger or smaller does not."""
    found = node(scatter, reduction=reduction)
    assert effective_op(found) == operator
    assert (operator in MOVERS) == moving


def test_a_scatter_without_a_reduction_moves():
    """Where the attribute is absent, or says so, values are only put into their places."""
    assert effective_op(node("ScatterND")) in MOVERS
    assert effective_op(node("ScatterElements", reduction="none")) in MOVERS
    assert effective_op(node("ScatterND", reduction="none")) == "ScatterND"


def test_a_reduction_elsewhere_is_none():
    """An attribute of that name on any other operator says nothing about moving."""
    assert effective_op(node("Gather", reduction="add")) == "Gather"
    assert effective_op(node("Add")) not in MOVERS


def test_a_reduction_that_a_function_leaves_open_may_add():
    """Inside a function that is kept the caller says what a scatter does: it is taken to add."""
    scatter = node("ScatterND")
    scatter.attributes["reduction"] = ir.RefAttr("reduction", "how", ir.AttributeType.STRING)
    assert effective_op(scatter) not in MOVERS
