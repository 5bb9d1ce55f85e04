import gc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from amp_rewrite import analyze, demo, rewrite
from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.rewriting import result_checks
from tests import text

TEXT = """g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w> { h = MatMul(x, w)  y = Relu(h) }"""


@pytest.fixture
def model():
    """A small model that is rewritten."""
    return text.model(TEXT)


@pytest.fixture
def path(model, tmp_path):
    """The same in a file."""
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


BEFORE = ["load", "widen", "prepare", "analyse", "bound", "classify", "colour", "predict", "plan", "freeze"]
"""The stages up to the first edit."""


def test_the_story(model):
    """The stages come in the order of the design, each is timed, and progress hears of each."""
    told = []
    report = rewrite(model, progress=told.append).report
    assert told == [*BEFORE, "edit", "annotate", "write", "prove", "check"]
    assert [stage for stage, _ in report.seconds] == told
    assert all(seconds >= 0 for _, seconds in report.seconds)


def test_the_nodes_are_gone_through_a_bounded_number_of_times(path, monkeypatch):
    """A stage that looks at all nodes once more is seen here: they were gone through 26 times."""
    through, times = ir.Graph.__iter__, []
    monkeypatch.setattr(ir.Graph, "__iter__", lambda graph: times.append(graph) or through(graph))
    rewrite(path)
    assert len(times) <= MOST_TRAVERSALS


MOST_TRAVERSALS = 23


def test_the_report_counts(model):
    """What the report says of Casts and sizes is what the result has."""
    result = rewrite(model)
    report = result.report
    assert report.ok
    assert (report.half, report.casts_added, report.stored_half) == ("float16", 2, 1)
    assert (report.nodes.half, report.nodes.total) == (2, 2)
    assert report.size_before == model.ByteSize()
    assert report.size_after == result.model.ByteSize()


def test_an_analysis_changes_nothing(path):
    """Analysing writes no file, and leaves the model in memory as it was read."""
    before = path.read_bytes()
    analysis = analyze(path)
    assert analysis.plan
    assert ir.to_proto(analysis.loaded.model).graph.initializer[0].data_type == TensorProto.FLOAT
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("options", [Options(), Options(io=IOTypes.HALF), Options(metadata=False)])
def test_an_analysis_is_kept(options):
    """Whoever keeps the analysis from `on_plan` can ask it all afterwards, and the result is the same."""
    told, model = [], demo.network()
    result = rewrite(model, options, on_plan=lambda made: told.append((made, said(made))))
    (analysis, before), fresh = told[0], analyze(model, options)
    assert said(analysis) == before
    remedies = [[(cause.held, cause.suggestion) for cause in each.causes()] for each in (analysis, fresh)]
    assert remedies[0] == remedies[1] != []
    assert analysis.painted(Options(level="unsafe-force-all")) == fresh.painted(
        Options(level="unsafe-force-all")
    )
    assert analysis.ranges() == fresh.ranges()
    assert analysis.saved_plan() == fresh.saved_plan()
    assert result.model == rewrite(model, options).model


def said(made):
    """All that an analysis says in public, as text."""
    decisions = made.decisions()
    paints = made.painting.paints, made.painting.entries
    found = made.findings, made.warnings, made.matched, made.replay
    return repr((made.report(), decisions.all, decisions.cast_sites, paints, found))


def test_bfloat16_has_its_own_name(path):
    """The default output of a bfloat16 run is called _bf16."""
    assert rewrite(path, Options(half=BFLOAT16)).model == path.with_name("m_bf16.onnx")


def test_the_input_is_not_written_over(path):
    """The input itself is no output: by its name, by a detour, or by a link."""
    path.with_name("link.onnx").symlink_to(path)
    detour = path.parent / ".." / path.parent.name / path.name
    before = path.read_bytes()
    for output in (path, str(path), detour, path.with_name("link.onnx")):
        with pytest.raises(OptionError, match="is the input itself"):
            rewrite(path, output=output)
    assert path.read_bytes() == before


def test_in_place(path, model):
    """Asked for, the result replaces the input."""
    assert rewrite(path, in_place=True).model == path
    written = onnx.load(path)
    assert written.metadata_props.pop().value == path.name
    assert written == rewrite(model).model


def test_in_place_and_elsewhere(path):
    """Both together are refused, and nothing is written."""
    before = path.read_bytes()
    with pytest.raises(OptionError, match="contradict each other"):
        rewrite(path, output=path.with_name("out.onnx"), in_place=True)
    assert path.read_bytes() == before
    assert not path.with_name("out.onnx").exists()


def test_an_output_is_for_paths(model, tmp_path):
    """A model from memory is returned, and not written."""
    with pytest.raises(OptionError, match="output is for a path"):
        rewrite(model, output=tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_an_empty_graph():
    """A model without any node comes out as it came in."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g () => () {}')
    assert rewrite(model).model == model


def test_an_input_as_output():
    """What goes straight through keeps its name and type, whatever else becomes half."""
    model = text.model("g (float[4, 4] x) => (float[4, 4] x, float[4, 4] y) { y = MatMul(x, x) }")
    made = rewrite(model).model
    assert [info.name for info in made.graph.output] == ["x", "y"]
    assert list(made.graph.output) == list(model.graph.output)
    text.agree(model, made)


def test_an_output_that_is_read_on():
    """An output in float32 whose other readers are half is cast once for each."""
    source = "g (float[4, 4] x) => (float[4, 4] h, float[4, 4] y) { h = MatMul(x, x)  y = MatMul(h, h) }"
    model = text.model(source)
    made = rewrite(model).model
    assert list(made.graph.output) == list(model.graph.output)
    assert text.types(made)["h"] == "FLOAT"
    text.agree(model, made)


@pytest.mark.parametrize("kind", ["double", "float16", "int32"])
def test_what_is_not_float32_stays(kind):
    """A model without float32 comes out as it came in."""
    model = text.model(f"g ({kind}[4, 4] x) => ({kind}[4, 4] y) {{ h = MatMul(x, x)  y = Add(h, x) }}")
    assert rewrite(model).model == model


def test_a_half_model_is_not_converted_twice(model):
    """The result of one run is the result of the next."""
    once = rewrite(model).model
    report = rewrite(once).report
    assert rewrite(once).model == once
    assert report.ok


def test_half_borders(model):
    """Inputs and outputs become half when asked, but for those that are to be kept."""
    made = rewrite(model, Options(io=IOTypes.HALF, keep_io=("y",))).model
    assert text.types(made)["x"] == "FLOAT16"
    assert text.types(made)["y"] == "FLOAT"


def test_old_opsets_and_bfloat16():
    """Where no operator has bfloat16 yet nothing changes, and a warning says so."""
    model = text.model('<ir_version: 6, opset_import: ["" : 11]> ' + TEXT)
    result = rewrite(model, Options(half=BFLOAT16))
    assert result.model == model
    assert "bfloat16 needs opset 13, and the model has 11" in result.report.warnings[0]


def test_weights_that_ir_3_lists_as_inputs():
    """Before IR 4 every weight is an input too: it is converted, and the true inputs keep their types."""
    model = text.model('<ir_version: 8, opset_import: ["" : 9]> ' + TEXT)
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    made = rewrite(model).model
    onnx.checker.check_model(made, full_check=True)
    assert text.types(made)["w"] == "FLOAT16"
    assert text.types(made)["x"] == "FLOAT"


def test_weights_that_a_caller_may_override():
    """From IR 4 on such a weight is constant; kept, it stays float32, since it is part of the border."""
    model = text.model(TEXT)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    assert [value.name for value in rewrite(model).model.graph.input] == ["x"]
    made = rewrite(model, Options(keep_overridable=True)).model
    assert text.types(made)["w"] == "FLOAT"
    assert "w__float16 = Cast(w)" in text.nodes(made)
    text.agree(model, made)


def test_what_a_checker_refuses_before_is_a_warning(model):
    """A model that onnx's checker refused all along is rewritten, and the report says so."""
    model.graph.node[1].domain = ""
    model.graph.node[1].attribute.append(helper.make_attribute("odd", 1))
    report = rewrite(model).report
    assert report.ok
    assert "onnx's checker rejects this model" in report.warnings[0]


def test_no_check_when_not_asked(model):
    """Without the check there is no verdict of the checker."""
    model.graph.node[1].attribute.append(helper.make_attribute("odd", 1))
    assert not any("checker" in warning for warning in rewrite(model, Options(check=False)).report.warnings)


@pytest.fixture
def failing(monkeypatch):
    """A stage that fails in a way that nobody foresaw."""

    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("amp_rewrite.analysis.facts.unit_building.build", fail)


@pytest.mark.usefixtures("failing")
def test_a_damaged_model_is_to_blame(model):
    """What fails in a way that nobody foresaw is laid to a model that onnx's checker refuses."""
    model.graph.node[0].output.append("too_many")
    with pytest.raises(ModelError) as caught:
        rewrite(model)
    assert str(caught.value).startswith("the given model: is not a valid model")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("failing")
def test_a_fault_of_ours_is_none_of_the_model(model):
    """A valid model is never blamed: such an error goes on as it is."""
    with pytest.raises(ZeroDivisionError):
        rewrite(model)


@pytest.mark.parametrize("running", [True, False])
def test_the_collector_is_as_it_was(model, running):
    """The cycle collector is paused for a run, and afterwards on or off as before."""
    (gc.enable if running else gc.disable)()
    try:
        rewrite(model)
        assert gc.isenabled() is running
    finally:
        gc.enable()


def test_numbers(model):
    """The result computes what the original computes, to half's precision."""
    text.agree(model, rewrite(model).model, close=5e-3)
    assert not np.array_equal(*(next(iter(text.run(m).values())) for m in (model, rewrite(model).model)))


def test_a_very_large_model_is_checked_for_its_structure_and_says_so(model, monkeypatch):
    """Beyond the limit onnx infers no types again: the report warns of it; below, nothing is said."""
    before = rewrite(model).report.warnings
    monkeypatch.setattr(result_checks, "FULL_UP_TO", 1)
    (warning,) = set(rewrite(model).report.warnings) - set(before)
    assert "structure only" in warning


def test_other_domains_do_not_get_casts_that_the_opset_has_not():
    """MatMulNBits takes bfloat16 in a model of opset 12, whose Cast does not: nothing changes."""
    proto = text.model("""<ir_version: 8, opset_import: ["" : 12, "com.microsoft" : 1]>
        g (float[4,32] x) => (float[4,4] y) <uint8[4,1,16] q, float[4] s> {
            h = com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> (x, q, s)
            y = Relu (h)
        }""")
    assert rewrite(proto, Options(half=BFLOAT16)).model == proto


def test_constants_behind_a_transpose_keep_their_names():
    """Whoever looks at what a Constant node holds does not name it, in the given model least of all."""
    model = ir.from_proto(
        text.model(
            """g (float[4,4] x, float[4,4] w) => (float[4,4] y) {
                shape = Constant <value = int64[2] {4, 4}> ()
                t = Transpose <perm = [1, 0]> (x)
                r = Reshape (t, shape)
                y = MatMul (r, w)
            }"""
        )
    )
    before = ir.to_proto(model)
    made = ir.to_proto(rewrite(model, Options(check=False)).model)
    assert ir.to_proto(model) == before
    constants = [node for node in made.graph.node if node.op_type == "Constant"]
    assert [node.attribute[0].t.name for node in constants] == [""]


def test_a_model_of_another_purpose_is_warned_of(model):
    """A train step, which needs a loss scale; and what another half type has rounded before."""
    step = onnx.ModelProto()
    step.CopyFrom(model)
    step.metadata_props.add(key="amp_rewrite.train.loss", value="y")
    (line,) = [line for line in rewrite(step).report.warnings if "train step" in line]
    assert line.endswith("which needs a loss scale: `amp-rewrite train` inserts it")
    half = rewrite(model).model
    lines = rewrite(half, Options(half=BFLOAT16)).report.warnings
    assert "the model was half before: bfloat16 rounds what another type has rounded" in lines
    assert not [line for line in rewrite(model).report.warnings if "half before" in line or "train" in line]
