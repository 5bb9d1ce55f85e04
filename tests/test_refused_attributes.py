"""Nodes that onnxruntime's CUDA provider refuses for an attribute, despite a kernel: they stay float32."""

import pytest

from amp_rewrite import analyze
from amp_rewrite.colouring.painting import Rule
from amp_rewrite.placement.placement import CpuReason
from amp_rewrite.policy import targets
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.policy.reasons import in_words
from tests.cuda_sessions import cuda_placer, marks, worsened
from tests.text import agree, in_half, model, rewritten

TRANSPOSED = """g (float[1,4,5,5] x) => (float[A,B,C,D] y) <float[4,4,2,2] w, float[4,4,1,1] v> {{
    m = Conv (x, v)
    [op] c = ConvTranspose <{}> (m, w)
    y = Relu (c)
}}"""
RECURRENT = """g (float[3,2,4] x) => (float[A,B,C,D] y) <float[4,4] w, float[{directions},{rows},4] i,
    float[{directions},{rows},4] r, float[{directions},12] p> {{
    m = MatMul (x, w)
    [op] y = {operator} <hidden_size = 4{said}> (m, i, r{more})
}}"""
ROWS = {"LSTM": 16, "GRU": 12, "RNN": 4}
EXTREMUM = """g (float[3,4] x) => (int64[3,1] y) <float[4,4] w> {{
    m = MatMul (x, w)
    [op] y = {} (m)
}}"""


def recurrent(operator, said="", more="", directions=1):
    """A recurrent layer behind a product."""
    said = f", {said}" if said else ""
    return RECURRENT.format(
        operator=operator, rows=ROWS[operator], said=said, more=more, directions=directions
    )


LINEAR = "linear_before_reset = 1"
TWO = 'direction = "bidirectional"'
LSTM_TWICE = ", ".join(['"Sigmoid", "Tanh", "Tanh"'] * 2)
CASES = [
    (TRANSPOSED.format("pads = [1,1,0,0]"), "pads"),
    (TRANSPOSED.format("pads = [0,1,1,0]"), "pads"),
    (TRANSPOSED.format("pads = [0,1,0,1]"), ""),
    (TRANSPOSED.format("strides = [2,2], output_padding = [1,1]"), ""),
    (TRANSPOSED.format("strides = [2,2], output_shape = [11,11]"), ""),
    (TRANSPOSED.format('auto_pad = "SAME_UPPER"'), "auto_pad"),
    (TRANSPOSED.format('auto_pad = "SAME_LOWER"'), "auto_pad"),
    (TRANSPOSED.format('auto_pad = "VALID"'), ""),
    (TRANSPOSED.format("dilations = [2,2]"), ""),
    *((recurrent(each), "") for each in ("LSTM", "RNN")),
    *((recurrent(each, "clip = 9.0"), "clip") for each in ("LSTM", "RNN")),
    *((recurrent(each, "activation_alpha = [0.5]"), "activation_alpha") for each in ("LSTM", "RNN")),
    *((recurrent(each, "activation_beta = [0.5]"), "activation_beta") for each in ("LSTM", "RNN")),
    (recurrent("LSTM", 'activations = ["Sigmoid", "Relu", "Tanh"]'), "activations"),
    (recurrent("LSTM", 'activations = ["sigmoid", "TANH", "Tanh"]'), ""),
    (recurrent("LSTM", f"{TWO}, activations = [{LSTM_TWICE}]", directions=2), ""),
    (recurrent("LSTM", "input_forget = 1"), "input_forget"),
    (recurrent("LSTM", "input_forget = 0"), ""),
    (recurrent("LSTM", more=", , , , , p"), "P"),
    (recurrent("LSTM", 'direction = "reverse"'), ""),
    (recurrent("RNN", 'activations = ["Relu"]'), "activations"),
    (recurrent("RNN", f'{TWO}, activations = ["Tanh", "Tanh"]', directions=2), ""),
    (recurrent("RNN", f'{TWO}, activations = ["Tanh", "Relu"]', directions=2), "activations"),
    (recurrent("GRU"), "linear_before_reset"),
    (recurrent("GRU", "linear_before_reset = 0"), "linear_before_reset"),
    (recurrent("GRU", LINEAR), ""),
    (recurrent("GRU", f"{LINEAR}, clip = 9.0"), "clip"),
    (recurrent("GRU", f'{LINEAR}, activations = ["HardSigmoid", "Tanh"]'), "activations"),
    (EXTREMUM.format("ArgMax <axis = 1>"), ""),
    (EXTREMUM.format("ArgMax <axis = 1, select_last_index = 1>"), "select_last_index"),
    (EXTREMUM.format("ArgMin <axis = 1, select_last_index = 1>"), "select_last_index"),
]
each_case = pytest.mark.parametrize(("source", "name"), CASES)


@each_case
def test_what_is_refused_stays_float32(source, name):
    """With the attribute as the reason, as a finding that propagates nothing; what is not refused is half."""
    found = analyze(model(source))
    (op,) = [unit for unit in found.graph.units if unit.node.name == "op"]
    entry = found.painting.entries[op.index]
    is_half = found.painting.is_half(op.index) or found.painting.paints[op.index].rule is Rule.PRUNE
    assert is_half != bool(name)
    assert (entry.authority is Authority.TARGET) == bool(name)
    assert not name or f"kernel for its {name}," in in_words(entry.evidence)


@pytest.mark.parametrize("source", [source for source, _ in CASES])
def test_what_is_refused_runs(source):
    """The result loads on the CPU, and is close."""
    agree(model(source), rewritten(model(source)).model)


def test_others_may_want_them():
    """Another target has all kernels, and forcing everything forces these, as it does without a kernel."""
    source = TRANSPOSED.format("pads = [1,1,0,0]")
    assert "c" not in in_half(source)
    assert "c" in in_half(source, Options(target=targets.ANY))
    assert "c" in in_half(source, Options(level=Level.UNSAFE_FORCE_ALL))


def test_an_attribute_of_a_wrong_type_is_no_reason():
    """What the runtime does not read is not read here."""
    broken = model(TRANSPOSED.format("pads = [1,1,0,0]"))
    (node,) = [node for node in broken.graph.node if node.name == "op"]
    node.attribute[0].ints[:] = []
    node.attribute[0].type, node.attribute[0].f = 1, 1.0
    found = analyze(broken, Options(check=False))
    assert not any("refuses" in in_words(entry.evidence) for entry in found.painting.entries)


@marks
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_cuda_refuses_these_and_no_others(half):
    """In float32 already; and the results have no node on the CPU, copy or inserted Cast more."""
    with cuda_placer() as place:
        for source, name in CASES:
            before = model(source)
            original, result = place(before), place(rewritten(before, Options(half=half)).model)
            refused = {group.why for group in original.on_cpu} == {CpuReason.REFUSED}
            assert refused == bool(name), source
            assert (result.refused, worsened(original, result)) == ("", []), source
