"""What moves values and what computes with them."""

import onnx_ir as ir
import pytest

from amp_rewrite.model.patterns import effective_op
from amp_rewrite.operators.catalogue import MOVERS


def node(operator, **attributes):
    """A node with these attributes, in no graph."""
    return ir.node(operator, [ir.Value(), ir.Value(), ir.Value()], attributes)


@pytest.mark.parametrize(
    ("found", "operator", "moves"),
    [
        (node("ScatterElements", reduction="add"), "Add", False),
        (node("ScatterND", reduction="mul"), "Mul", False),
        (node("ScatterND", reduction="max"), "Max", True),
        (node("ScatterElements", reduction="min"), "Min", True),
        (node("ScatterElements", reduction="none"), "ScatterElements", True),
        (node("ScatterND"), "ScatterND", True),
        (node("Gather", reduction="add"), "Gather", True),  # which says nothing elsewhere
        (node("Add"), "Add", False),
        # in a function that is kept the caller says what a scatter does: it is taken to add
        (node("ScatterND", reduction=ir.RefAttr("reduction", "how", ir.AttributeType.STRING)), "Add", False),
    ],
)
def test_a_scatter_with_a_reduction_acts_as_that(found, operator, moves):
    """A scatter that adds or multiplies makes new values; one that takes the larger or smaller does not."""
    assert effective_op(found) == operator
    assert (operator in MOVERS) is moves
