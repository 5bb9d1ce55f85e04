"""Where Casts are inserted, and what they are called."""

import pytest

from tests.text import agree, model, nodes, rewritten


@pytest.mark.parametrize("name", ["a b", "ümlaut/层:0", "x.1::y", 'quote"d', "x__float16", " "])
def test_odd_names_are_kept(name):
    """For any name of a value, its Cast has the same name with the type appended."""
    proto = model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    for old in ("x", "y"):
        _rename(proto, old, f"{name}{old}")
    result = rewritten(proto)
    assert nodes(result.model) == [
        f"{name}x__float16 = Cast({name}x)",
        f"{name}y__float16 = MatMul({name}x__float16, w)",
        f"{name}y = Cast({name}y__float16)",
    ]
    agree(proto, result.model)


def _rename(proto, old, new):
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for info in (*proto.graph.input, *proto.graph.output):
        info.name = new if info.name == old else info.name
