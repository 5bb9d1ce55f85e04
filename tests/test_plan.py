"""A plan as data: which values change, which Casts go where, which tensors are stored how."""

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from amp_rewrite.pipeline import analyze
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.rewriting.plan import Storage
from tests.text import model, printed

TEXT = """g (float[4,4] x, bool c) => (float[4,4] y, float[4,4] z) <float[4,4] w, float[4,4] v> {
    m = MatMul (x, w)
    e = Exp (m)
    n = MatMul (m, v)
    y = If (c) <
        then_branch = t () => (float[4,4] p) { p = MatMul (e, w) },
        else_branch = f () => (float[4,4] q) { q = Add (n, w) }
    >
    z = Sub (e, w)
}"""


def planned(text, options=None, weights=None):
    """The plan for a text."""
    return analyze(model(text, weights), options).plan


def casts(plan):
    """Every Cast as `value -> type`, and where it is read."""
    return {f"{c.value.name} -> {c.dtype.name}": [_place(s) for s in c.uses] for c in plan.casts}


def _place(site):
    where = site.holder.name if isinstance(site.holder, ir.Graph) else site.holder.outputs[0].name
    return f"{where}.{site.port}"


def test_one_cast_for_each_value_and_type():
    """A Cast knows every place that it is for, those in branches and the model's outputs included."""
    assert casts(planned(TEXT)) == {
        "x -> FLOAT16": ["m.0"],
        "m -> FLOAT": ["e.0"],
        "y -> FLOAT": ["g.0"],
        "e -> FLOAT16": ["p.0"],
    }


def test_values_become_half_where_they_stand():
    """The values that half units make change type, outputs of the model first; nothing else does."""
    assert [v.name for v in planned(TEXT).values] == ["y", "m", "n", "p", "q"]


def test_a_tensor_of_both_colours():
    """The second form of a stored tensor lists the places that read it."""
    forms = {s.stored.value.name: (s.storage, [_place(r) for r in s.uses]) for s in planned(TEXT).tensors}
    assert forms == {"w": (Storage.BOTH, ["m.1", "p.1", "q.1"]), "v": (Storage.HALF, [])}


@pytest.mark.parametrize(
    ("values", "form", "cast"), [([1, 2, 3, 4], Storage.HALF, True), ([0.1] * 4, Storage.BOTH, False)]
)
def test_exact_tensors_are_stored_once(values, form, cast):
    """A tensor that half holds exactly is one tensor and a Cast, however many colours read it."""
    text = "g (float[4] x) => (float y, float[4] z) <float[4] w> { y = MatMul (x, w) z = Exp (w) }"
    found = planned(text, weights={"w": np.float32(values)})
    assert [s.storage for s in found.tensors] == [form]
    assert ("w -> FLOAT" in casts(found)) == cast


def test_the_plan_counts_what_changes():
    """Saturated and vanishing values are counted per tensor, before anything is edited."""
    text = """g (float[4,4] x, bool[4,4] k) => (float[4,4] y)
    <float[4,4] w, float fill = {-1e9}, float[4] t = {1e-9, -1e-9, 0, 1}> {
        s = MatMul (x, w)
        b = Mul (s, t)
        a = Where (k, b, fill)
        p = Softmax (a)
        y = MatMul (p, w)
    }"""
    found = planned(text)
    counts = {s.stored.value.name: (s.saturates, s.flushes) for s in found.tensors}
    assert counts == {"w": (0, 0), "fill": (1, 0), "t": (0, 2)}
    assert {s.stored.value.name for s in found.tensors if s.saturates} == {"fill"}


def test_half_borders_need_no_casts():
    """With half inputs and outputs the inputs and outputs are among the values that become half."""
    text = "g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }"
    found = planned(text, Options(io=IOTypes.HALF))
    assert [value.name for value in found.values] == ["x", "y"]
    assert found.casts == ()
    kept = planned(text, Options(io=IOTypes.HALF, keep_io=("y",)))
    assert casts(kept) == {"y -> FLOAT": ["g.0"]}


def test_half_borders_without_anything_to_gain():
    """Asked for half inputs and outputs, even a model that computes in float32 alone gets them."""
    text = "g (float[4,4] x) => (float[4,4] y) { y = Exp (x) }"
    assert casts(planned(text, Options(io=IOTypes.HALF))) == {
        "x -> FLOAT": ["y.0"],
        "y -> FLOAT16": ["g.0"],
    }


def test_nothing_to_do_is_an_empty_plan():
    """A plan without any change is false."""
    text = "g (float[4,4] x) => (float[4,4] y) { y = Exp (x) }"
    assert not planned(text)
    assert planned(TEXT)


def test_analysing_changes_nothing():
    """The model that a plan was made for is what it was; and a plan cannot be changed."""
    proto = model(TEXT)
    analysis = analyze(proto)
    assert printed(ir.to_proto(analysis.loaded.model)) == printed(proto)
    with pytest.raises(dataclasses.FrozenInstanceError):
        analysis.plan.casts = ()
