"""Train steps: what they are is found, and a loss scale changes no value of them."""

import json

import numpy as np
import onnx
import pytest
from onnx import reference

from amp_rewrite import emulate, pipeline, training
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.training import DynamicLossScale, FixedLossScale, Pair, TrainSpec, steps
from tests import train_steps
from tests.commands import every
from tests.train_steps import MOVES, NAMES, NEW, STATE, batches, real, source, start, step, train

CLIPPED = """
  q1 = Mul (dw1, dw1)  n1 = ReduceSum <keepdims = 0> (q1)
  q2 = Mul (dw2, dw2)  n2 = ReduceSum <keepdims = 0> (q2)
  n = Add (n1, n2)     norm = Sqrt (n)      most = Max (norm, bound)            clip = Div (bound, most)
  c1 = Mul (dw1, clip) c2 = Mul (dw2, clip) l1 = Mul (w1, decay)                l2 = Mul (w2, decay)
  g1 = Add (c1, l1)    g2 = Add (c2, l2)    b1 = Mul (m1, beta)                 b2 = Mul (m2, beta)
  m1_new = Add (b1, g1)  m2_new = Add (b2, g2)
  k1 = Mul (w1, keep)  k2 = Mul (w2, keep)  a1 = Mul (lr, m1_new)               a2 = Mul (lr, m2_new)
  w1_new = Sub (k1, a1)  w2_new = Sub (k2, a2)
"""
ONES = (
    "float loss_grad = {1.0}, float bound = {0.01}, float decay = {0.001}, float beta = {0.9}, "
    "float keep = {0.999}"
)
SLOTS = f"{STATE}, float[4, 16] m1, float[16, 3] m2"
NEW_SLOTS = f"{NEW}, float[4, 16] m1_new, float[16, 3] m2_new"
ACCUMULATED = """
  g1_new = Add (g1, dw1)   g2_new = Add (g2, dw2)  w1_new = Identity (w1)  w2_new = Identity (w2)
"""
SHARED_SEED = "xs = Mul (x, loss_grad)  h1 = MatMul (xs, w1)  h = Add (h1, loss_grad)"
COUNTED = f"{MOVES} n1 = Add (n, loss_grad)  n_new = Mul (n1, loss_grad)"
SCATTERED = """dq = Mul (dm, loss_grad)
  blank = ConstantOfShape (shape)  dp = ScatterElements <axis = 0, reduction = "add"> (blank, rows, dq)"""
TRAPS = {
    "as it is": source(),
    "clipped by norm, L2, momentum and decay": source(CLIPPED, SLOTS, NEW_SLOTS, stored=ONES),
    "accumulated": source(
        ACCUMULATED,
        f"{STATE}, float[4, 16] g1, float[16, 3] g2",
        f"{NEW}, float[4, 16] g1_new, float[16, 3] g2_new",
    ),
    "the buffer is the gradient": source(
        f"{MOVES} g_new = Identity (dw1)", f"{STATE}, float[4, 16] g", f"{NEW}, float[4, 16] g_new"
    ),
    "a seed that the forward pass shares": source(forward=SHARED_SEED),
    "a seed that the optimiser shares": source(COUNTED, f"{STATE}, float n", f"{NEW}, float n_new"),
    "a seed that is divided": source(
        seeded="s = Div (loss_grad, parts)  dp = Mul (dm, s)",
        stored="float loss_grad = {1.0}, float parts = {3.0}",
    ),
    "zero branches": source(
        seeded=SCATTERED,
        stored="float loss_grad = {1.0}, int64[2] shape = {8, 3}, "
        "int64[8, 3] rows = {0,1,2,0,1,2,3,4,5,3,4,5,6,7,6,7,6,7,1,2,3,4,5,6}",
    ),
    "the norm as an output": source(
        f"{MOVES} q = Mul (dw1, dw1)  qs = ReduceSum <keepdims = 0> (q)  norm = Sqrt (qs)",
        new=f"{NEW}, float norm",
    ),
    "a gradient as an output": source(MOVES, new=f"{NEW}, float[4, 16] dw1"),
    "state that stays": source(
        f"{MOVES} v_new = Identity (v)", f"{STATE}, float[2] v", f"{NEW}, float[2] v_new"
    ),
    "names like ours": source(
        MOVES.replace("a1", "loss_scale").replace("a2", "grads_finite"),
        seeded="dp = Mul (dm, loss_grad)  good_steps = Neg (dm)",
    ),
    "opset 9": source(opset=9),
    "IR version 3": source(opset=9).replace("ir_version: 8", "ir_version: 3"),
    "opset 13": source(opset=13),
}  # fmt: skip
BRANCHED = MOVES.replace(
    "a1 = Mul (lr, dw1)",
    """yes = Greater (lr, zero)
  a1 = If (yes) <then_branch = t () => (float[4, 16] o) { o = Mul (lr, dw1) },
                 else_branch = e () => (float[4, 16] p2) { p2 = Neg (dw1) }>""",
)
BOTH = [("w1", "w1_new"), ("w2", "w2_new")]
SAID = {
    "a gradient is the state itself": (
        source(state=f"{STATE}, float[4, 16] g", new=f"{NEW}, float[4, 16] dw1"), [*BOTH, ("g", "dw1")], (),
    ),
    "gradients without an optimiser": (source("", new="float[4, 16] dw1"), (), ("dw1",)),
    "an optimiser in a branch": (source(BRANCHED), BOTH, ()),
}  # fmt: skip
"""Steps of which it is said what they are: the state, and the gradients."""
SCALES = [FixedLossScale(2.0**13), DynamicLossScale(64, 2, 4.0)]


@pytest.mark.parametrize("scale", SCALES, ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", [*TRAPS, *SAID])
def test_no_bit_changes(name, scale):
    """With a power of two, every output of every step is what it was, whatever the step is made of."""
    written, *said = SAID.get(name, (TRAPS.get(name),))
    model = step(written)
    spec = TrainSpec("loss", "loss_grad", *said) if said else training.find_spec(model)
    before, after = _same(model, spec, scale, batches(model, 4), start(model))
    for old, new in zip(before.outputs, after.outputs, strict=True):
        assert all((old[key] == new[key]).all() for key in old)
    assert np.isfinite(before.losses).all()
    if isinstance(scale, DynamicLossScale):
        names = ("loss_scale.new", "loss_scale_2.new")
        assert [after.outputs[-1][name] for name in names if name in after.outputs[-1]] == [64 * 16]


def _same(model, spec, scale, fed, state):
    """What came of some steps without and with a scale; losses and state are the same, bit for bit."""
    result = training.insert_loss_scale(model, spec, scale)
    assert result.broken == ()
    before, after = (train(m, spec, state, fed) for m in (model, result.model))
    assert before.losses == after.losses
    assert all((before.state[key] == after.state[key]).all() for key in before.state)
    return before, after


def test_the_scale_reaches_the_backward_pass():
    """The gradients before the frontier are multiplied, and those behind it are not."""
    model = step()
    result = training.insert_loss_scale(model, None, 2.0**10)
    made = train_steps.session(_with_outputs(result.model, "dw1", "dw1__unscaled"))
    plain = train_steps.session(_with_outputs(model, "dw1"))
    feeds = {**start(model), **batches(model, 1)[0]}
    assert (made(feeds)["dw1"] == plain(feeds)["dw1"] * 2.0**10).all()
    assert (made(feeds)["dw1__unscaled"] == plain(feeds)["dw1"]).all()


def _with_outputs(model, *names):
    copy = train_steps.copied(model)
    copy.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    return copy


MAX = float(np.finfo(np.float32).max)
VECTORS = [
    ("TTTTTT", 1, 2, 2, [1, 2, 2, 4, 4, 8]),
    ("TTTTTT", MAX / 4, 2, 2, [MAX / 4, MAX / 2, MAX / 2, MAX, MAX, MAX]),
    ("FFFFFF", 1024, 2, 2, [512, 256, 128, 64, 32, 16]),
    ("FFFFFF", 16, 2, 2, [8, 4, 2, 1, 1, 1]),
    ("TTTFT", 1, 2, 2, [1, 2, 2, 1, 1]),
    ("TTTFTT", 1, 1, 2, [2, 4, 8, 4, 8, 16]),
    ("TFTFTFTFT", 1, 1, 2, [2, 1, 2, 1, 2, 1, 2, 1, 2]),
    ("TFTFTFT", 32, 2, 2, [32, 16, 16, 8, 8, 4, 4]),
    ("TTFTT", 4, 2, 3, [4, 12, 4, 4, 12]),
    ("FTTTFTFTTTF", 4, 2, 2, [2, 2, 4, 4, 2, 2, 1, 1, 2, 2, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("finite", "initial", "period", "multiplier", "expected"), VECTORS)
def test_the_scale_moves_as_tensorflows(finite, initial, period, multiplier, expected):
    """TensorFlow's own vectors (loss_scale_test.py): finite (T) or other (F) gradients, the scale after."""
    model = step()
    result = training.insert_loss_scale(model, None, DynamicLossScale(initial, period, multiplier))
    zeros = {"x": np.zeros((8, 4), np.float32), "y": np.zeros((8, 3), np.float32)}
    nan = {**zeros, "x": np.full((8, 4), np.nan, np.float32)}
    fed = [{**(zeros if flag == "T" else nan), "lr": np.asarray(0.1, np.float32)} for flag in finite]
    done = train(result.model, result.step.spec, start(model), fed)
    assert [float(made["loss_scale.new"]) for made in done.outputs] == [np.float32(e) for e in expected]
    assert "".join("FT"[int(made["grads_finite"])] for made in done.outputs) == finite


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_step_without_finite_gradients_changes_no_state(number):
    """All state is what it was, bit for bit: the scale alone is halved, and its count begins again."""
    model, state = real("cnn_momentum")
    result = training.insert_loss_scale(model, None, DynamicLossScale(1024))
    batch = {**batches(model, 1)[0]}
    batch["x"] = batch["x"].copy()
    batch["x"].flat[7] = number
    fed = {**state, **batch, "loss_scale": np.float32([1024])[0:1].reshape(()), "good_steps": np.asarray(7)}
    made = train_steps.session(result.model)(fed)
    assert not made["grads_finite"]
    assert (made["loss_scale.new"], made["good_steps.new"]) == (512, 0)
    for pair in result.step.spec.state:
        assert (made[pair.output] == state[pair.input]).all()


@pytest.mark.parametrize(
    ("given", "finite"),
    [
        # absolute values that sum to more than float32 holds are finite, as TensorFlow has it
        ({"x": 2.0**60, "y": 2.0**63}, [True, True]),
        ({"x": 1e38, "w1": 1e-38, "w2": 1e3, "y": 1e3}, [False, True]),
        ({"x": 1e20, "w1": 1e16, "w2": 0.0, "y": 1e3}, [True, False]),
        ({"x": np.nan}, [False, False]),
    ],
)
def test_every_gradient_is_looked_at(given, finite):
    """Where one of them alone is infinite the step keeps its state; with a fixed scale, where it is asked."""
    model = step()
    fed = {**start(model), **batches(model, 1)[0]}
    fed |= {name: np.full_like(fed[name], number) for name, number in given.items()}
    plain = train_steps.session(_with_outputs(model, "dw1", "dw2"))(fed)
    assert [bool(np.isfinite(plain[name]).all()) for name in ("dw1", "dw2")] == finite
    for scale in (DynamicLossScale(1), 1):
        result = training.insert_loss_scale(model, None, scale, skip_nonfinite=True).model
        made = train_steps.session(result)({**fed, **training.initial_state(result)})
        assert made["grads_finite"] == all(finite)
        kept = all((made[f"{name}_new"] == fed[name]).all() for name in ("w1", "w2"))
        assert kept is not all(finite)
    if all(finite):
        with np.errstate(over="ignore"):
            assert np.isinf(sum(np.abs(plain[name]).sum(dtype=np.float32) for name in ("dw1", "dw2")))
    fixed = training.insert_loss_scale(model, None, 1).model  # which skips no step, as in TensorFlow
    assert [value.name for value in fixed.graph.output] == ["loss", "w1_new", "w2_new"]
    assert training.initial_state(fixed) == {}
    assert np.isfinite(train_steps.session(fixed)(fed)["w1_new"]).all() == finite[0]


def test_small_gradients_survive_in_half():
    """With a weight of 1e-8 nothing moves in float16 (emulated) without a scale; with one, as in float32.

    Also with one that goes into a step that was made half without.
    """
    model = train_steps.weighted(step(), 1e-8)
    spec, fed = training.find_spec(model), batches(model, 3)
    fed = [{**batch, "lr": np.asarray(1e6, np.float32)} for batch in fed]
    made = {
        scale: training.rewrite_train_step(model, loss_scale=scale).model
        for scale in (None, 2.0**14, "dynamic")
    }
    made["later"] = training.insert_loss_scale(made[None], None, 2.0**14).model
    moved = {
        scale: train(emulate(each), spec, start(model), fed).state["w1"] - start(model)["w1"]
        for scale, each in made.items()
    }
    expected = train(model, spec, start(model), fed).state["w1"] - start(model)["w1"]
    assert np.abs(moved.pop(None)).max() < 0.1 * np.abs(expected).max()
    for scale, found in moved.items():
        assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max(), scale


@pytest.mark.parametrize("implementation", ["graph_rewrite", pytest.param("casting", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_real_steps_in_half(name, implementation):
    """Products are half on both sides of the loss; its region, and what follows gradients, are not.

    What multiplies an error by 2/N before the seed is float32: in half it is zero before any scale.
    """
    job = steps.job(implementation=implementation)
    analysis = pipeline.analyze(real(name)[0], job.options, transform=job.first)
    graph, scaled = analysis.graph, job.step
    halves = {unit.node.outputs[0].name for unit in graph.units if analysis.painting.is_half(unit.index)}
    assert scaled.products >= 5
    products = {
        node.outputs[0].name
        for node in graph.nodes[graph.root]
        if node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose")
    }
    assert len(products & halves) >= 0.75 * len(products)  # depthwise convolutions are predicted not to pay
    assert halves.isdisjoint((*scaled.loss_region, *scaled.optimiser))
    entries = analysis.painting.entries
    held = {unit.node.outputs[0].name: entries[unit.index].evidence.reason for unit in graph.units}
    assert {Reason.LOSS_REGION, Reason.OPTIMISER, Reason.SCALING} <= {*held.values()}
    if name == "mlp_adam":
        assert {"val_0", "loss", "mul", "mul_1"} <= set(scaled.loss_region)
        made = [held[value] for value in ("mul", "l1.weight.new", "mul_3")]  # the guard has the second name
        assert made == [Reason.LOSS_REGION, Reason.SCALING, Reason.OPTIMISER]


@pytest.mark.parametrize("name", every(2, NAMES))
def test_real_steps_are_found(name):
    """Without metadata, and without any name, it is the same step: loss, state and gradients."""
    model, _ = real(name)
    told = training.find_spec(model)
    bare = train_steps.copied(model)
    del bare.metadata_props[:]
    found = training.find_spec(bare)
    assert (found.loss, found.seed, found.state) == (told.loss, told.seed, told.state)
    renamed = _renamed(bare)
    frontier = training.insert_loss_scale(renamed[0], None, 2).step.frontier
    found = training.find_spec(renamed[0])
    assert found.loss == renamed[1][told.loss]
    assert set(found.state) == {Pair(renamed[1][p.input], renamed[1][p.output]) for p in told.state}
    named = {renamed[1][name] for name in told.gradients}
    assert len(frontier) == len(named)
    assert len(named.difference(frontier)) <= 2  # those of embeddings are found before a factor


def _renamed(model):
    """The model with numbers as the names of all values, and the new names by the old ones."""
    graph, names = model.graph, {}
    for value in (*graph.input, *graph.initializer, *graph.output):
        value.name = names.setdefault(value.name, f"v{len(names)}")
    for node in graph.node:
        for ports in (node.input, node.output):
            ports[:] = [name and names.setdefault(name, f"v{len(names)}") for name in ports]
    del graph.value_info[:]
    return model, names


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2.0, 2.0**15, 2.0**30])
@pytest.mark.parametrize("name", NAMES)
def test_real_steps_bit_for_bit(name, scale):
    """20 steps with a scale that grows: every loss and all state as without."""
    model, state = real(name)
    fed = batches(model, 20)
    _, after = _same(model, training.find_spec(model), DynamicLossScale(scale, 2), fed, state)
    assert after.state["loss_scale"] == scale * 2**10


OWN = "own"
STEPS = [OWN, *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES)]
"""A small step, and slowly the real ones."""


def _step(name):
    return (step(), start(step())) if name == OWN else real(name)


@pytest.mark.parametrize("name", [OWN, *STEPS[2:]])
def test_a_scale_that_is_too_large_recovers(name):
    """From 2^40 the scale is halved until gradients are finite; then it trains as float32 did."""
    model, state = _step(name)
    spec, fed = training.find_spec(model), batches(model, 1) * 40
    made = emulate(training.rewrite_train_step(model, loss_scale=DynamicLossScale(2.0**40)).model)
    done = train(made, spec, state, fed)
    good = [bool(made["grads_finite"]) for made in done.outputs]
    assert good.index(True) > 5
    assert good[-1]
    expected = train(model, spec, state, fed[: sum(good)]).losses[-1]
    assert done.losses[-1] == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("name", STEPS[:2])
def test_the_emulation_is_the_reference(name):
    """Half as onnx.reference computes it, and half as emulated on onnxruntime, give the same state."""
    model, state = _step(name)
    spec, fed = training.find_spec(model), batches(model, 2)
    half = training.rewrite_train_step(model).model
    evaluator = reference.ReferenceEvaluator(half)
    outputs = [value.name for value in half.graph.output]
    inputs = {value.name for value in half.graph.input}

    def run(feeds):
        taken = {name: value for name, value in feeds.items() if name in inputs}
        return dict(zip(outputs, map(np.asarray, evaluator.run(None, taken)), strict=True))

    told, found = train(half, spec, state, fed, run), train(emulate(half), spec, state, fed)
    assert told.losses == pytest.approx(found.losses, rel=2e-3)
    for name in told.state:
        apart = np.linalg.norm(told.state[name] - found.state[name])
        assert apart <= 0.05 * np.linalg.norm(told.state[name])


def test_a_step_remembers_what_it_is():
    """The spec is in the metadata of a result, which is read again, as are its start values.

    With the range of bfloat16 no scale is needed, and no input is added.
    """
    model = step()
    result = training.rewrite_train_step(model, loss_scale=DynamicLossScale(256.0, 10, 4.0))
    assert training.find_spec(result.model).state == training.find_spec(model).state
    told = {pair.key: pair.value for pair in result.model.metadata_props}
    assert json.loads(told["amp_rewrite.train.loss_scale"])["scale"]["multiplier"] == 4
    assert training.initial_state(result.model) == {"loss_scale": 256, "good_steps": 0}
    result = training.rewrite_train_step(model, "bfloat16")
    assert result.step.loss_scale is None
    assert [value.name for value in result.model.graph.input] == ["x", "y", "lr", "w1", "w2"]


def test_the_forward_pass_reads_the_seed_as_it_is():
    """A constant that the forward pass shares with the seed is not multiplied there."""
    result = training.insert_loss_scale(step(TRAPS["a seed that the forward pass shares"]), None, 8)
    made = {node.output[0]: list(node.input) for node in result.model.graph.node}
    assert (made["xs"][1], made["h"][1], made["dp"][1]) == ("loss_grad", "loss_grad", "loss_grad__scaled")
    assert result.step.frontier == ("dw2", "dw1")


def test_a_train_step_takes_a_policy():
    """By its name in Keras; under float32 nothing becomes half, and a scale can be inserted all the same."""
    half, wide = (training.rewrite_train_step(step(), name) for name in ("MIXED_float16", "float32"))
    assert half.report.nodes.half > 0
    assert training.initial_state(half.model)["loss_scale"] == 2**15
    assert (wide.report.nodes.half, wide.step.loss_scale) == (0, None)
    scaled = training.rewrite_train_step(step(), "float32", 16)
    assert (scaled.report.nodes.half, scaled.step.loss_scale) == (0, FixedLossScale(16))
    assert scaled.model.graph.node


def test_casting_halves_what_is_safe_without_a_neighbour():
    """The activation of an input, before all products, is half only where every layer is cast."""
    model = step(source(forward="u = Sigmoid (x) h = MatMul (u, w1)"))
    counts = {
        how: training.rewrite_train_step(model, implementation=how).report.nodes.half
        for how in training.Implementation
    }
    assert counts[training.Implementation.CASTING] == counts[training.Implementation.GRAPH_REWRITE] + 1
