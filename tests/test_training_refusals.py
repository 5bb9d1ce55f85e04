"""Steps that are refused, that keep their weights elsewhere, or that are half already."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from amp_rewrite import Options, Pins, certify, emulate, training
from amp_rewrite.errors import ModelError, OptionError, SpecError
from amp_rewrite.options import ExternalData
from tests import text, train_steps
from tests.train_steps import batches, source, start, step, train

ARTEFACT = """<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
  training (float[8, 4] x, float[8, 3] y, float[4, 3] w, float[4, 3] w_buffer, bool[1] lazy_reset_grad)
    => (float loss, bool[1] w_done) <float loss_grad = {1.0}, float scale = {0.5}> {
    xt = Transpose <perm = [1, 0]> (x)
    p = MatMul (x, w)  r = Relu (p)  d = Sub (r, y)  sq = Mul (d, d)  loss = ReduceMean <keepdims = 0> (sq)
    dm = Mul (d, scale)  dr = Mul (dm, loss_grad)  dp = com.microsoft.ReluGrad (dr, r)
    w_grad = MatMul (xt, dp)
    w_done = com.microsoft.InPlaceAccumulatorV2 (w_buffer, w_grad, lazy_reset_grad)
  }"""


def test_artefacts_are_refused_with_the_reason():
    """What onnxruntime-training makes runs on one old version alone, and has no half kernels."""
    with pytest.raises(
        ModelError, match=r"an artefact of onnxruntime-training \(InPlaceAccumulatorV2, ReluGrad\)"
    ):
        training.rewrite_train_step(text.unchecked(ARTEFACT))


def test_a_scale_goes_into_artefacts():
    """Its gradient operators are known to be linear: the accumulator gets what it got."""
    spec = training.TrainSpec("loss", "loss_grad", (), ("w_grad",))
    result = training.insert_loss_scale(text.unchecked(ARTEFACT), spec, 256)
    nodes = {node.op_type: node for node in result.model.graph.node}
    assert nodes["InPlaceAccumulatorV2"].input[1] == "w_grad__unscaled"
    assert result.step.frontier == ("w_grad",)
    (unscale,) = (node for node in result.model.graph.node if "w_grad__unscaled" in node.output)
    assert list(unscale.input) == ["w_grad", "loss_scale__reciprocal"]


def _in_body():
    """A step whose backward pass is inside a branch."""
    model = step()
    inner = helper.make_graph(
        [
            helper.make_node("Mul", ["dm", "inner_seed"], ["di"]),
            helper.make_node("MatMul", ["rt", "di"], ["dw2_inner"]),
        ],
        "then",
        [],
        [helper.make_tensor_value_info("dw2_inner", TensorProto.FLOAT, [16, 3])],
        [onnx.numpy_helper.from_array(np.asarray(1.0, np.float32), "inner_seed")],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["w2"], ["same"])],
        "else",
        [],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, [16, 3])],
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(True), "yes"))
    for node in model.graph.node:
        if "dw2" in node.output:
            node.CopyFrom(helper.make_node("If", ["yes"], ["dw2"], then_branch=inner, else_branch=other))
    return model


def test_a_seed_inside_a_body_is_refused():
    """None can be scaled there, and the error says so; what is beside it is named as unscaled."""
    with pytest.raises(SpecError, match="'inner_seed' is inside the body of a node"):
        training.find_spec(_in_body(), seed="inner_seed")
    with pytest.raises(SpecError, match="'dw2' reach the state without the scale"):
        training.find_spec(_in_body())


def test_weights_in_a_file_of_their_own(tmp_path):
    """External data stays external, and the values are what they were."""
    model = step(
        source(
            forward="xe = Mul (x, mask)  h = MatMul (xe, w1)",
            stored="float loss_grad = {1.0}, float[8, 4] mask",
        )
    )
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    model = onnx.load(tmp_path / "m.onnx")
    out = tmp_path / "s.onnx"
    training.insert_loss_scale(tmp_path / "m.onnx", output=out)
    spec, fed = training.find_spec(out), batches(model, 2)
    before, after = train(model, spec, start(model), fed), train(onnx.load(out), spec, start(model), fed)
    assert before.losses == after.losses
    assert {path.name for path in tmp_path.iterdir()} >= {"m.onnx", "m.data", "s.onnx"}
    half = training.rewrite_train_step(
        tmp_path / "m.onnx", options=Options(external_data=ExternalData("always")), output=tmp_path / "h.onnx"
    )
    assert half.report.ok
    with pytest.raises(OptionError, match="holds weights of the input"):
        training.insert_loss_scale(tmp_path / "m.onnx", output=tmp_path / "m.data", force=True)


def test_a_scale_goes_into_what_is_half_already():
    """Into a step that was made half without one: small gradients survive, in the precision of the seed."""
    model = train_steps.weighted(step(), 1e-8)
    half = training.rewrite_train_step(model, loss_scale=None).model
    result = training.insert_loss_scale(half, None, 2.0**14)
    assert result.broken == ()
    fed = [{**batch, "lr": np.asarray(1e6, np.float32)} for batch in batches(model, 2)]
    spec = result.step.spec
    moved = [
        train(made, spec, start(model), fed).state["w1"] - start(model)["w1"]
        for made in (model, emulate(half), emulate(result.model))
    ]
    assert np.abs(moved[1]).max() < 0.1 * np.abs(moved[0]).max()
    assert np.abs(moved[2] - moved[0]).max() < 0.01 * np.abs(moved[0]).max()


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_seeds_of_other_types(dtype):
    """The seed and the gradients keep their types; they are scaled in float32 at least."""
    written = source(
        seeded=f"low = Cast <to = {TensorProto.FLOAT16 if dtype == 'float16' else TensorProto.DOUBLE}> (dm)  "
        f"dl = Mul (low, loss_grad)  dp = Cast <to = 1> (dl)",
        stored=f"{dtype} loss_grad",
    )
    ones = {"loss_grad": np.ones((), dtype)}
    model = text.model(written.replace(f"{dtype} loss_grad", f"{dtype} loss_grad"), ones)
    result = training.insert_loss_scale(model, None, training.DynamicLossScale(4.0, 2))
    assert result.broken == ()
    fed = batches(model, 4)
    before, after = (train(m, result.step.spec, start(model), fed) for m in (model, result.model))
    assert before.losses == pytest.approx(after.losses, rel=1e-6)


def test_pins_and_lists_count_as_ever():
    """A pin makes half what it names, in the loss region too; an operator override does not."""
    model = step()
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    pinned = training.rewrite_train_step(model, options=Options(pins=Pins(force_half="node_d")))
    casts = {node.output[0]: node for node in pinned.model.graph.node}
    assert casts["d"].input[0] == "p"
    kept = training.rewrite_train_step(model, options=Options(pins=Pins(keep_full="node_dw1")))
    assert next(node for node in kept.model.graph.node if "dw1" in node.output).input[0] == "xt"
    assert kept.report.nodes.half < training.rewrite_train_step(model).report.nodes.half


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"to": "float8"}, "'float8' is not one of float16, bfloat16, mixed_float16"),
        ({"implementation": "magic"}, "'magic' is not one of graph_rewrite, casting"),
        ({"loss_scale": None, "skip_nonfinite": True}, "is for a loss scale"),
        ({"options": Options(io="half")}, "would make master weights half"),
        ({"options": Options(keep_functions=True)}, "hides the backward pass"),
        ({"options": Options(storage_only=True)}, "not for master weights"),
        ({"spec": "loss"}, "'loss' is not of type TrainSpec"),
    ],
)
def test_what_arguments_cannot_be(arguments, problem):
    """An error names the argument."""
    with pytest.raises(OptionError) as caught:
        training.rewrite_train_step(step(), **arguments)
    assert problem in str(caught.value)


def test_an_old_opset_is_told():
    """A dynamic scale needs opset 9."""
    model = step(source(opset=9))
    model.opset_import[0].version = 8
    for node in [node for node in model.graph.node if node.op_type == "Greater"]:
        node.op_type = "Greater"
    with pytest.raises(SpecError, match="needs opset 9, and the model has 8"):
        training.insert_loss_scale(model)


def test_opset_8_takes_a_fixed_scale():
    """Which needs no more than a Mul that broadcasts."""
    model = step(source(opset=9))
    model.opset_import[0].version = 8
    assert training.insert_loss_scale(model, None, 8).step.frontier == ("dw2", "dw1")


BRANCHED = train_steps.MOVES.replace(
    "a1 = Mul (lr, dw1)",
    """yes = Greater (lr, zero)
  a1 = If (yes) <then_branch = t () => (float[4, 16] o) { o = Mul (lr, dw1) },
                 else_branch = e () => (float[4, 16] p2) { p2 = Neg (dw1) }>""",
)
BUFFERED = source(state=f"{train_steps.STATE}, float[4, 16] g", new=f"{train_steps.NEW}, float[4, 16] dw1")
ODD = {
    "a gradient is the state itself": (BUFFERED, [("w1", "w1_new"), ("w2", "w2_new"), ("g", "dw1")], ()),
    "gradients without an optimiser": (source("", new="float[4, 16] dw1"), (), ("dw1",)),
    "an optimiser in a branch": (source(BRANCHED), [("w1", "w1_new"), ("w2", "w2_new")], ()),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_steps_bit_for_bit(name):
    """The frontier is an output, the only output, or in a body: no bit changes."""
    written, state, gradients = ODD[name]
    model, spec = step(written), training.TrainSpec("loss", "loss_grad", state, gradients)
    result = training.insert_loss_scale(model, spec, training.DynamicLossScale(64, 2))
    assert result.broken == ()
    fed = batches(model, 3)
    before, after = (train(m, spec, start(model), fed) for m in (model, result.model))
    for old, new in zip(before.outputs, after.outputs, strict=True):
        assert all((old[key] == new[key]).all() for key in old)


@pytest.mark.parametrize("implementation", ["graph_rewrite", "casting"])
def test_the_certificate_covers_the_rest(implementation):
    """A rewritten step is proved to be the scaled one but for precision."""
    model, _ = train_steps.real("cnn_momentum")
    half = training.rewrite_train_step(model, implementation=implementation)
    assert certify(training.insert_loss_scale(model).model, half.model).proved
    assert not certify(training.insert_loss_scale(model, None, 128).model, half.model).proved


def test_one_scale_is_enough():
    """A second one is refused; without one, what a step has stays."""
    scaled = training.insert_loss_scale(step()).model
    with pytest.raises(SpecError, match="has a loss scale already"):
        training.insert_loss_scale(scaled)
    half = training.rewrite_train_step(scaled, loss_scale=None)
    assert training.initial_state(half.model) == {"loss_scale": 2**15, "good_steps": 0}


def test_a_loss_without_a_shape():
    """What is called so is the loss, even if no shape is declared."""
    model = step()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert training.find_spec(model).loss == "loss"
