import gc

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from amp_rewrite import analyze, demo, rewrite
from amp_rewrite.errors import ModelError
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
    remedies = [[(cause.affected, cause.suggestion) for cause in each.causes()] for each in (analysis, fresh)]
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


@pytest.mark.parametrize("check", [True, False])
def test_what_a_checker_refuses_before_is_a_warning(model, check):
    """A model that onnx's checker refused all along is rewritten, and the report says so, if it is asked."""
    model.graph.node[1].attribute.append(helper.make_attribute("odd", 1))
    report = rewrite(model, Options(check=check)).report
    assert report.ok
    assert any("onnx's checker rejects this model" in warning for warning in report.warnings) is check


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


def test_a_very_large_model_is_checked_for_its_structure_and_says_so(model, monkeypatch):
    """Beyond the limit onnx infers no types again: the report warns of it; below, nothing is said."""
    before = rewrite(model).report.warnings
    monkeypatch.setattr(result_checks, "FULL_UP_TO", 1)
    (warning,) = set(rewrite(model).report.warnings) - set(before)
    assert "structure only" in warning


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
    assert "the model was already in float16: its values are rounded a second time" in lines
    assert not [line for line in rewrite(model).report.warnings if "already in" in line or "train" in line]
