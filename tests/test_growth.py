"""Time is linear in the size of a model, whatever it has much of: counted in calls, not in seconds."""

from __future__ import annotations

import sys
from collections import Counter

import onnx
import pytest

from amp_rewrite import Options, restore, rewrite
from benchmarks.graphs import FAMILIES
from tests import text

GROWTH = 1.3
"""How much more than twice as often a function may be called for a model of twice the size."""

SMALL = 100
"""The nodes of the smaller model."""

QUICK = ("Sum", "inputs", "masks")
"""The families that are tried by default."""


def calls(action, *arguments):
    """How often each function of Python or C is called, and each generator resumed."""
    counts = Counter()

    def count(frame, event, function):
        if event == "call":
            counts[frame.f_code] += 1
        elif event == "c_call":
            counts[frame.f_code, function.__qualname__] += 1

    sys.setprofile(count)
    try:
        action(*arguments)
    finally:
        sys.setprofile(None)
    return counts


def grown(action, make):
    """The functions that are called too often for a model of twice the size; caches are filled before."""
    action(make(SMALL // 2))
    action(make(2 * SMALL))
    once, twice = calls(action, make(SMALL)), calls(action, make(2 * SMALL))
    most = 2 * GROWTH
    return {str(name): (once[name], n) for name, n in twice.items() if n > most * once[name] + 4 * SMALL}


def always(model):
    """Rewrites a model, whether that pays or not."""
    return rewrite(model, Options(gate=False)).model


def marked(names):
    """Families as parameters, slow unless they are QUICK."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("family", marked(FAMILIES))
def test_a_rewrite_grows_with_its_model(family):
    """No function is called more than 2.6 times as often for twice the nodes."""
    assert not grown(always, FAMILIES[family])


def joined(count, node, stored=""):
    """A Concat of n values, each made by a node of its own, and a product."""
    weights = "".join(f", {stored.format(i)}" for i in range(count) if stored)
    made = " ".join(node.format(i) for i in range(count))
    return text.unchecked(
        f"""joined (float[rows,4] x) => (float[rows,4] y) <float[4,4] w{weights}> {{
        {made} c = Concat <axis = 0> ({", ".join(f"v{i}" for i in range(count))})
        m = MatMul (c, w) y = Add (m, x) }}"""
    )


IDLE_CAST = ("v{0} = Cast <to = 1> (x)",)
FOLDED = ("v{0} = Exp (s{0})", "float[1,4] s{0}")


@pytest.mark.parametrize("make", [IDLE_CAST, FOLDED], ids=["idle Casts", "folded"])
def test_preparing_grows_with_the_inputs_of_a_node(make):
    """Casts that do nothing, and stored results, are as many as a node has inputs."""
    assert not grown(always, lambda count: joined(count, *make))


@pytest.mark.parametrize("family", marked(["Sum", "Concat", "fan-out"]))
def test_the_way_back_grows_with_the_model(family):
    """Restoring removes as many Casts as a node has inputs."""
    assert not grown(restore, lambda count: always(FAMILIES[family](count)))


def test_wide_nodes_read_what_they_read_before():
    """Each input of a node of many comes from the same source, and the result is valid."""
    result = always(FAMILIES["Sum"](60))
    onnx.checker.check_model(result, full_check=True)
    (node,) = (node for node in result.graph.node if node.op_type == "Sum")
    read = [name.removesuffix("__float16").removesuffix("__float32") for name in node.input]
    assert read == [f"{'e' if i % 2 else 'm'}{i}" for i in range(30)]
