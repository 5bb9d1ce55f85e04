"""How many sizes a Reshape is given tells the rank of what it makes."""

import pytest
from onnx import parser

from amp_rewrite import certify
from amp_rewrite.certificate import numbering
from amp_rewrite.certificate.numbered import Numbered
from amp_rewrite.certificate.shapes import Ranks

NETWORK = """<ir_version: 7, opset_import: ["" : {opset}]> g (float[n, c, h, w] x, int64[k] any) => (y)
    <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] last = {{-1}}, int64[2] both = {{0, 1}},
    int64 at = {{0}}> {{ s = Shape (x) {sizes} r = Reshape (x, t) y = Softmax <axis = 1> (r) }}"""
TWO = {
    "a part of a shape": "p = Slice (s, zero, two, zero) t = Identity (p)",
    "from the end": "p = Slice (s, last, two, zero, last) t = Concat <axis = 0> (p, last)",
    "sizes": "p = Gather <axis = 0> (s, both) t = Concat <axis = 0> (p)",
    "through types": "p = Slice (s, zero, last) q = Cast <to = 6> (p) t = Slice (q, zero, two)",
}
OTHERS = {
    "a size": (
        "i = Gather <axis = 0> (s, at) p = Unsqueeze <axes = [0]> (i) t = Concat <axis = 0> (last, p)",
        2,
    ),
    "by attributes": ("p = Slice <starts = [1], ends = [9]> (s) t = Identity (p)", 3),
    "all of it": ("t = Identity (s)", 4),
    "unknown sizes": ("t = Concat <axis = 0> (last, any)", None),
    "an unknown part": ("t = Slice (s, zero, any)", None),
}


def rank(sizes):
    """What is known of the axes of the value that the network reshapes."""
    opset = 9 if "starts" in sizes else 11  # where a Slice still says it in attributes
    proto = parser.parse_model(NETWORK.format(opset=opset, sizes=sizes))
    made = numbering.number(Numbered(proto, None), {})
    return Ranks(made).of(made.names.index("r"))


@pytest.mark.parametrize("sizes", TWO.values(), ids=TWO)
def test_computed_sizes_tell_a_rank(sizes):
    """A Softmax over the second axis means the same at opset 13 where there are two."""
    both = (parser.parse_model(NETWORK.format(opset=opset, sizes=sizes)) for opset in (11, 13))
    assert certify(*both).proved


@pytest.mark.parametrize(("sizes", "axes"), OTHERS.values(), ids=OTHERS)
def test_as_many_sizes_as_axes(sizes, axes):
    """Whatever makes them; of an unknown number of them nothing is known."""
    assert rank(sizes) == axes


def test_other_ranks_are_not_proved():
    """With three sizes a Softmax over the second axis is another at opset 13."""
    sizes = "p = Slice (s, zero, last) t = Identity (p)"
    both = (parser.parse_model(NETWORK.format(opset=opset, sizes=sizes)) for opset in (11, 13))
    assert rank(sizes) == 3
    assert not certify(*both).proved


@pytest.mark.parametrize(("parts", "axes"), [(60, 60), (2000, None)])
def test_a_length_of_very_many_parts_is_not_known(parts, axes):
    """No runtime has values of so many axes."""
    assert rank(f"t = Concat <axis = 0> ({', '.join(['last'] * parts)})") == axes
