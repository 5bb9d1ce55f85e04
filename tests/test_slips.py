"""Slips that a stranger made with the library and the command line: one line that says what would help."""

import copy
import pickle
from collections import UserDict

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

import amp_rewrite
from amp_rewrite import Options, Pins, demo
from amp_rewrite.policy import operator_lists as lists
from tests import text
from tests.commands import refusal

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
product (float[2, 3] x) => (float[2, 3] y) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
  [product] h = MatMul (x, w)
  [root] y = Sqrt (h)
}
"""
SAMPLE = {"x": np.ones((2, 3), np.float32)}


@pytest.fixture
def model():
    """A product, whose weights are stored, and a root."""
    return text.model(MODEL)


def lazy(make):
    """The model, with weights that are made when they are asked for."""
    model = ir.from_proto(text.model(MODEL))
    weights = ir.LazyTensor(make, dtype=ir.DataType.FLOAT, shape=ir.Shape((3, 3)), name="w")
    model.graph.initializers["w"].const_value = weights
    return model


def test_weights_that_cannot_be_fetched_are_named():
    """What the maker of a lazy tensor raises is said of that tensor, and is no error of onnx-ir's."""

    def gone():
        raise ConnectionError("the bucket is gone")

    line = refusal(amp_rewrite.rewrite, lazy(gone))
    assert "the content of 'w' cannot be read (ConnectionError: the bucket is gone)" in line


def test_weights_that_come_in_another_shape_are_refused():
    """A lazy tensor that makes another shape than it declares is damaged."""
    line = refusal(amp_rewrite.rewrite, lazy(lambda: ir.tensor(np.ones(7, np.float32))))
    assert "the content of 'w' does not fit its type and shape (it has the shape (7,))" in line


def surgeon_graph(dtype=np.float32, **attrs):
    """A Relu as a graph of onnx-graphsurgeon."""
    x, y = (gs.Variable(name, dtype, (2, 3)) for name in "xy")
    node = gs.Node("Relu", "relu", attrs=attrs, inputs=[x], outputs=[y])
    return gs.Graph([node], [x], [y], opset=17)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (lambda: surgeon_graph(dtype=None), "must include dtype information"),
        (lambda: surgeon_graph(odd=object()), "is not an accepted attribute value"),
    ],
    ids=["no dtype", "no attribute value"],
)
def test_a_surgeon_graph_that_cannot_be_exported(graph, said):
    """What onnx-graphsurgeon says comes as a ModelError, with what would help."""
    line = refusal(amp_rewrite.rewrite, graph())
    assert line.startswith("the given graph: cannot be exported")
    assert said in line
    assert "export_onnx" in line


def test_what_was_seen_of_another_model_is_refused(model):
    """Names that the model does not have would hold nothing in float32, and nobody would know."""
    seen = amp_rewrite.observe(demo.network(), demo.feeds())
    for call in (amp_rewrite.rewrite, amp_rewrite.analyze):
        line = refusal(call, model, observed=seen)
        assert line == "observed: was observed on another model; observe the model that you rewrite"
        line = refusal(call, model, observed=dict(seen))
        assert line == "observed: holds no value of this model; observe the model that you rewrite"
    assert amp_rewrite.rewrite(model, observed=amp_rewrite.observe(model, SAMPLE)).report.changed


def test_an_empty_path_is_not_the_current_folder(model, tmp_path):
    """Said of what was given: nobody wrote a dot."""
    onnx.save(model, tmp_path / "m.onnx")
    assert refusal(amp_rewrite.rewrite, tmp_path / "m.onnx", output="") == "output: '' is not a path"
    assert refusal(Options, lists="").startswith("Options.lists: '' is not an operator list")


def test_a_name_is_an_exception_to_a_pattern(model):
    """Both say how many nodes they match."""
    pins = Pins(keep_full=".*", force_half="product")
    report = amp_rewrite.rewrite(model, Options(pins=pins)).report
    assert (report.nodes.half, report.nodes.full) == (1, 1)
    assert [(found.by, found.nodes) for found in report.matched] == [("keep_full", 2), ("force_half", 1)]


@pytest.mark.parametrize("spelling", ["none/../m.onnx", "link"])
def test_a_way_through_a_folder_that_is_not_there_leads_nowhere(model, tmp_path, monkeypatch, spelling):
    """As for the system; what is left of it without `none/..` is the input, which was overwritten."""
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "m.onnx")
    (tmp_path / "link").symlink_to("none/../m.onnx")
    before = (tmp_path / "m.onnx").read_bytes()
    assert spelling in refusal(amp_rewrite.rewrite, "m.onnx", output=spelling)
    assert (tmp_path / "m.onnx").read_bytes() == before


def test_a_sample_is_read_once(model):
    """What decompresses an array whenever it is asked for it, as NumPy's files do, is asked once."""

    class Counting(dict):
        asked = 0

        def __getitem__(self, name):
            self.asked += 1
            return super().__getitem__(name)

    sample = UserDict(SAMPLE)
    sample.data = Counting(SAMPLE)
    amp_rewrite.observe(model, sample)
    assert sample.data.asked == 1


def test_options_go_to_another_process():
    """Lists are pickled with the options that hold them, also those that flags have changed."""
    options = Options(lists=lists.load("tensorflow").override(lists.Kind.DENY, ["Conv"]))
    assert pickle.loads(pickle.dumps(options)) == options == copy.deepcopy(options)


def test_looking_at_nothing_but_infinities_shows_nothing(model):
    """What was seen would hold nothing in float32, as if all were small enough."""
    sample = {"x": np.full((2, 3), np.inf, np.float32)}
    line = refusal(amp_rewrite.observe, model, sample)
    assert line == "no floating-point value of a run is finite; give other inputs with `samples`"
