"""Steps that are refused, that keep their weights elsewhere, or that are half already."""

import numpy as np
import onnx
import pytest
from onnx import helper

from amp_rewrite import Options, Pins, certify, training
from amp_rewrite.errors import SpecError
from amp_rewrite.options import ExternalData
from amp_rewrite.training import (
    DynamicLossScale,
    Pair,
    TrainSpec,
    find_spec,
    insert_loss_scale,
    rewrite_train_step,
)
from tests import text, train_steps
from tests.commands import refusal
from tests.train_steps import MOVES, NEW, STATE, batches, source, start, step, train

ARTEFACT = """<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
  training (float[8, 4] x, float[8, 3] y, float[4, 3] w, float[4, 3] w_buffer, bool[1] lazy_reset_grad)
    => (float loss, bool[1] w_done) <float loss_grad = {1.0}, float scale = {0.5}> {
    xt = Transpose <perm = [1, 0]> (x)
    p = MatMul (x, w)  r = Relu (p)  d = Sub (r, y)  sq = Mul (d, d)  loss = ReduceMean <keepdims = 0> (sq)
    dm = Mul (d, scale)  dr = Mul (dm, loss_grad)  dp = com.microsoft.ReluGrad (dr, r)
    w_grad = MatMul (xt, dp)
    w_done = com.microsoft.InPlaceAccumulatorV2 (w_buffer, w_grad, lazy_reset_grad)
  }"""


TWO_LOSSES = source(
    f"{MOVES} t2 = Mul (p, p)  other = ReduceMean <keepdims = 0> (t2)",
    new=f"{NEW}, float other",
    loss="total",
)
TWO_SEEDS = source(
    """e1 = Mul (r, second)  f1 = MatMul (xt, e1)  both = Add (dw1, f1)
  a1 = Mul (lr, both)  w1_new = Sub (w1, a1)  a2 = Mul (lr, dw2)  w2_new = Sub (w2, a2)""",
    stored="float loss_grad = {1.0}, float second = {0.5}",
)
RIVALS = source(
    "a1 = Mul (lr, dw1)  q = Sub (w1, a1)  z = Add (w1, a1)", new="float[4, 16] q, float[4, 16] z"
)
NO_GRADIENT = """<ir_version: 8, opset_import: ["" : 18]>
  step (float[8, 4] x, float[4, 3] w) => (float loss, float[4, 3] w_new) {
    p = MatMul (x, w)  loss = ReduceMean <keepdims = 0> (p)  w_new = Identity (w) }"""
NO_STATE = """<ir_version: 8, opset_import: ["" : 18]>
  net (float[8, 4] x, float[4, 3] w) => (float[8, 3] p, float s) {
    p = MatMul (x, w)  s = ReduceMean <keepdims = 0> (p) }"""
NO_LOSS = """<ir_version: 8, opset_import: ["" : 18]>
  net (float[8, 4] x, float[4, 3] w) => (float[8, 3] p) { p = MatMul (x, w) }"""
TWINS = source(
    """g = Add (w1, v1)  a1 = Mul (lr, dw1)  q = Sub (g, a1)  a2 = Mul (lr, dw2)  q2 = Sub (w2, a2)""",
    f"{STATE}, float[4, 16] v1", "float[4, 16] q, float[16, 3] q2",
)  # fmt: skip


IN_BODY = source(stored="float loss_grad = {1.0}, bool yes = {1}").replace(
    "dw2 = MatMul (rt, dp)",
    """dw2 = If (yes) <then_branch = t () => (float[16, 3] o) <float inner = {1.0}>
    { di = Mul (dm, inner) o = MatMul (rt, di) },
    else_branch = e () => (float[16, 3] q) { q = Identity (w2) }>""",
)
"""A step whose backward pass is inside a branch."""
STEPS = [
    (TWO_LOSSES, {}, "several outputs may be the loss: 'total', 'other'"),
    (TWO_SEEDS, {}, "'f1' reach the state without the scale of the seed"),
    (TWO_SEEDS, {"gradients": ["both", "dw2"]}, "the gradients 'both' are not linear in the seed"),
    (TWO_SEEDS, {"seed": "loss_grad"}, "'f1' reach the state without the scale of the seed 'loss_grad'"),
    (NO_GRADIENT, {}, "its state is updated without a backward pass"),
    (NO_STATE, {}, "no output is the new value of an input"),
    (NO_LOSS, {}, "no output is a floating-point scalar that a product leads to"),
    (TWINS, {}, "the output 'q' may be the new state of several inputs: 'w1', 'v1'"),
    (RIVALS, {}, "the input 'w1' may be the old state of several outputs: 'q', 'z'"),
    (TWO_SEEDS.replace("loss_grad", "first"), {}, "no value is the seed of the whole backward pass"),
    (source(), {"loss": "nothing"}, "the loss 'nothing' is not an output"),
    (source(), {"seed": "nothing"}, "the seed 'nothing' is not a value of the model"),
    (source(), {"seed": "pos"}, "the seed 'pos' is no floating-point tensor"),
    (source(), {"seed": "lr_"}, "the seed 'lr_' is not a value of the model"),
    (source(), {"seed": "h"}, "the seed 'h' starts no backward pass"),
    (source(), {"state": [("w1", "w2_new")]}, "the state w1 -> w2_new has two types or shapes"),
    (source(), {"state": [("w", "w2_new")]}, "names an input 'w' that the model does not have"),
    (source(), {"gradients": ["w1"]}, "the gradient 'w1' is not a value that a node"),
]  # fmt: skip


def _at_opset_8():
    model = step(source(opset=9))
    model.opset_import[0].version = 8
    return model


def _with_a_preview():
    """A step with an operator of ai.onnx.preview.training, which runs nowhere."""
    model, domain = step(), "ai.onnx.preview.training"
    model.opset_import.append(helper.make_opsetid(domain, 1))
    model.graph.node.append(helper.make_node("Gradient", ["x"], ["gx"], domain=domain, xs=["x"], y="loss"))
    return model


@pytest.mark.parametrize(("written", "said", "problem"), STEPS)
def test_what_is_no_clear_step_is_named(written, said, problem):
    """An error says what is missing, or lists the candidates, and what would help."""
    with pytest.raises(SpecError) as caught:
        find_spec(step(written), **said)
    assert problem in str(caught.value)
    assert caught.value.remedy


REFUSED = [
    (lambda: insert_loss_scale(step(), None, 0.5), "0.5 is not a number from 1"),
    (lambda: insert_loss_scale(step(), None, float("inf")), "inf is not a loss scale"),
    (lambda: insert_loss_scale(step(), None, "often"), "'often' is not a loss scale"),
    (lambda: insert_loss_scale(step(), None, True), "True is not a loss scale"),
    (lambda: insert_loss_scale(step(), None, None), "no loss scale is asked for"),
    (lambda: insert_loss_scale(_at_opset_8()), "needs opset 9, and the model has 8"),
    (lambda: insert_loss_scale(insert_loss_scale(step()).model), "has a loss scale already"),
    (lambda: training.initial_state(step()), "no loss scale of ours"),
    (lambda: rewrite_train_step(text.unchecked(ARTEFACT)), "an artefact of onnxruntime-training (InPlace"),
    (lambda: find_spec(_with_a_preview()), "Gradient of ai.onnx.preview.training: no"),
    (lambda: find_spec(step(IN_BODY), seed="inner"), "'inner' is inside the body of a node"),
    (lambda: find_spec(step(IN_BODY)), "'dw2' reach the state without the scale"),
]
ARGUMENTS = [
    ({"to": "float8"}, "'float8' is not one of float16, bfloat16, mixed_float16"),
    ({"implementation": "magic"}, "'magic' is not one of graph_rewrite, cast"),
    ({"loss_scale": None, "skip_nonfinite": True}, "is for a loss scale"),
    ({"options": Options(io="half")}, "would make master weights half"),
    ({"options": Options(keep_functions=True)}, "hides the backward pass"),
    ({"options": Options(storage_only=True)}, "not for master weights"),
    ({"spec": "loss"}, "'loss' is not of type TrainSpec"),
]
REFUSED += [
    (lambda asked=asked: rewrite_train_step(step(), **asked), problem) for asked, problem in ARGUMENTS
]


@pytest.mark.parametrize(("call", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_what_is_refused(call, problem):
    """An error names the argument, or the part of the step."""
    assert problem in refusal(call)


@pytest.mark.parametrize("arguments", [(0.5,), (2, 0), (2, 1, 1), (2, 1, float("nan")), (2, 1.5)])
def test_what_is_no_dynamic_scale(arguments):
    """Scales and multipliers are at least 1, periods whole."""
    refusal(DynamicLossScale, *arguments)


@pytest.mark.parametrize("state", [5, [("a",)], [(1, 2)], "ab", ["a=b", "a=c"], ["a=c", "b=c"]])
def test_what_is_no_state(state):
    """Pairs of names, each once; a mapping and texts are pairs as well."""
    refusal(TrainSpec, "loss", "seed", state)
    assert TrainSpec("l", "s", {"a": "b"}).state == TrainSpec("l", "s", ["a=b"]).state == (Pair("a", "b"),)


def test_what_a_step_has_stays():
    """Its loss scale, where no other is asked for; that it has no other state; its loss by name, even if no
    shape is declared.

    An opset of 8 takes a fixed scale.
    """
    half = rewrite_train_step(insert_loss_scale(step()).model, loss_scale=None)
    assert training.initial_state(half.model) == {"loss_scale": 2**15, "good_steps": 0}
    assert insert_loss_scale(_at_opset_8(), None, 8).step.frontier == ("dw2", "dw1")
    kept = source("g1 = Identity (dw1)  g2 = Identity (dw2)", new="float[4, 16] g1, float[16, 3] g2")
    scaled = insert_loss_scale(step(kept), TrainSpec(gradients=("dw1", "dw2")))
    assert find_spec(scaled.model) == scaled.step.spec
    assert scaled.step.guessed == ()
    model = step()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert find_spec(model).loss == "loss"


def test_a_scale_goes_into_artefacts():
    """Its gradient operators are known to be linear: the accumulator gets what it got."""
    spec = TrainSpec("loss", "loss_grad", (), ("w_grad",))
    result = insert_loss_scale(text.unchecked(ARTEFACT), spec, 256)
    nodes = {node.op_type: node for node in result.model.graph.node}
    assert nodes["InPlaceAccumulatorV2"].input[1] == "w_grad__unscaled"
    assert result.step.frontier == ("w_grad",)
    (unscale,) = (node for node in result.model.graph.node if "w_grad__unscaled" in node.output)
    assert list(unscale.input) == ["w_grad", "loss_scale__reciprocal"]


def test_weights_in_a_file_of_their_own(tmp_path):
    """A path is written to where it is said; the original and its data stay, as do the values."""
    stored = "float loss_grad = {1.0}, float[8, 4] mask"
    model = step(source(forward="xe = Mul (x, mask)  h = MatMul (xe, w1)", stored=stored))
    path, scaled, half = (tmp_path / name for name in ("m.onnx", "s.onnx", "h.onnx"))
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="m.data")
    given, model = path.read_bytes(), onnx.load(path)
    assert insert_loss_scale(path, output=scaled).model == scaled
    before, after = (
        train(each, find_spec(scaled), start(model), batches(model, 2)) for each in (model, onnx.load(scaled))
    )
    assert before.losses == after.losses
    external = Options(external_data=ExternalData("always"))
    assert rewrite_train_step(path, options=external, output=half).report.ok
    assert training.initial_state(half) == {"loss_scale": 2**15, "good_steps": 0}
    assert (path.read_bytes(), (tmp_path / "m.data").exists()) == (given, True)
    assert "a path needs an output" in refusal(insert_loss_scale, path)
    told = refusal(insert_loss_scale, path, output=tmp_path / "m.data", force=True)
    assert "holds weights of the input" in told


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_seeds_of_other_types(dtype):
    """The seed and the gradients keep their types; they are scaled in float32 at least."""
    low = f"low = Cast <to = {10 if dtype == 'float16' else 11}> (dm)"
    seeded = f"{low} dl = Mul (low, loss_grad) dp = Cast <to = 1> (dl)"
    ones = {"loss_grad": np.ones((), dtype)}
    model = text.model(source(seeded=seeded, stored=f"{dtype} loss_grad"), ones)
    result = insert_loss_scale(model, None, DynamicLossScale(4.0, 2))
    assert result.broken == ()
    fed = batches(model, 4)
    before, after = (train(m, result.step.spec, start(model), fed) for m in (model, result.model))
    assert before.losses == pytest.approx(after.losses, rel=1e-6)


def test_pins_and_lists_count_as_ever():
    """A pin makes half what it names, in the loss region too; an operator override does not."""
    model = step()
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    pinned = rewrite_train_step(model, options=Options(pins=Pins(force_half="node_d")))
    casts = {node.output[0]: node for node in pinned.model.graph.node}
    assert casts["d"].input[0] == "p"
    kept = rewrite_train_step(model, options=Options(pins=Pins(keep_full="node_dw1")))
    assert next(node for node in kept.model.graph.node if "dw1" in node.output).input[0] == "xt"
    assert kept.report.nodes.half < rewrite_train_step(model).report.nodes.half


@pytest.mark.parametrize("implementation", ["graph_rewrite", "casting"])
def test_the_certificate_covers_the_rest(implementation):
    """A rewritten step is proved to be the scaled one but for precision."""
    model, _ = train_steps.real("cnn_momentum")
    half = rewrite_train_step(model, implementation=implementation)
    assert certify(insert_loss_scale(model).model, half.model).proved
    assert not certify(insert_loss_scale(model, None, 128).model, half.model).proved
