"""FusedConv: decomposed for a target without a half kernel for it, and kept otherwise."""

import onnx
import pytest

from amp_rewrite import rewrite
from amp_rewrite.policy import targets
from amp_rewrite.policy.options import Options
from tests.text import agree, becomes, model, nodes, stays

FUSED = """<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w, float[2] b, float[1,2,4,4] z> {{
    [fused] y = com.microsoft.FusedConv <activation = "{activation}"{more}> (x, w, b{residual}) }}"""


def text(activation="Relu", more="", residual="", opset=13):
    """A convolution, fused with an activation and optionally a residual."""
    return FUSED.format(activation=activation, more=more, residual=residual, opset=opset)


def test_the_parts_are_half():
    """Conv, residual and activation run in half; names of outputs stay."""
    becomes(
        text(residual=", z", more=", strides = [1, 1]"),
        """g (float[1,2,4,4] x) => (float[1,2,4,4] y)
        <float16[2,2,1,1] w, float16[2] b, float16[1,2,4,4] z> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [fused] y__conv = Conv <strides = [1, 1]> (x__float16, w, b)
            [fused__Add] y__sum = Add (y__conv, z)
            [fused__Relu] y__float16 = Relu (y__sum)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


@pytest.mark.parametrize(
    ("activation", "more", "opset"),
    [
        ("Relu", "", 13),
        ("Sigmoid", "", 13),
        ("Tanh", "", 13),
        ("LeakyRelu", ", activation_params = [0.25]", 13),
        ("HardSigmoid", ", activation_params = [0.25, 0.5]", 13),
        ("Clip", ", activation_params = [0.5, 0.75]", 13),
        ("Clip", ", activation_params = [0.5, 0.75]", 9),
    ],
)
def test_each_activation_computes_what_it_did(activation, more, opset):
    """The parameters of an activation keep their meaning, as attributes or as inputs."""
    proto = model(text(activation, more, opset=opset))
    made = rewrite(proto, Options(keep_opset=True)).model
    onnx.checker.check_model(made, full_check=True)
    assert any(f" = {activation}(" in node for node in nodes(made))
    assert not any("FusedConv" in node for node in nodes(made))
    agree(proto, made)


def test_a_clip_at_an_old_opset_is_written_for_half():
    """It comes out of a FusedConv as Max and Min, as a Clip of the model itself does."""
    made = rewrite(model(text("Clip", ", activation_params = [0.5, 0.75]", opset=9))).model
    operators = [node.op_type for node in made.graph.node if node.op_type != "Constant"]
    assert operators == ["Cast", "Conv", "Max", "Min", "Cast"]


def test_what_is_not_known_stays_whole():
    """A node with an unknown activation is not decomposed."""
    made = rewrite(model(text("Softplus"))).model
    assert [node.op_type for node in made.graph.node] == ["FusedConv"]


def test_a_target_with_every_kernel_keeps_it_fused():
    """Nothing is decomposed for a runtime that has a half kernel."""
    made = rewrite(model(text()), Options(target=targets.ANY)).model
    assert "FusedConv" in [node.op_type for node in made.graph.node]


def test_a_model_in_which_nothing_becomes_half_stays_as_it_is():
    """If nothing becomes half, the model is returned unchanged, not decomposed."""
    stays(text(), Options(lists=Options().operator_lists().override(_fixed(), ["Conv"])))


def _fixed():
    return Options().operator_lists().find("", "Exp").kind
