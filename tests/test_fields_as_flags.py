"""The library speaks of fields, the command line of flags."""

import ast
import copy
import pickle
import re
from collections import UserDict
from pathlib import Path

import click
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import amp_rewrite
from amp_rewrite import Options, Pins, certify, demo, errors, measure_coverage, rewrite
from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.errors import ModelError
from amp_rewrite.policy import operator_lists as lists
from tests import text
from tests.commands import refusal, run

PACKAGE = Path(amp_rewrite.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z]|(?<![\w-])-o\b")

# What the command line prints under a result: suggestions of flags, by nature.
SUGGESTS = {
    "explaining/suggestions.py",
    "explaining/causes.py",
    "explaining/sentences.py",
    "reporting/explanations.py",
    "reporting/terminal.py",
    "running/verdict_text.py",
    "running/verdict.py",
    "coverage/advice.py",
    "coverage/counts.py",
}
CORE = ("analysis", "colouring", "model", "numerics", "onnx_types", "policy", "rewriting")


def texts(path):
    """The string constants of a module that are no documentation."""
    tree = ast.parse(path.read_text())
    documents = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in documents)
    return [node.value for node in constants if isinstance(node.value, str)]


@pytest.fixture(scope="module")
def library():
    """The texts of each module of the library, by its path in the package."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    ours = [name for name in paths if name.split("/")[0] not in ("cli", "many.py") and name not in SUGGESTS]
    return {name: texts(paths[name]) for name in ours}


def test_the_library_names_no_flag(library):
    """A message of the library can be read by who called it from Python; in the core no text begins so."""
    assert [text for found in library.values() for text in found if FLAG.search(text)] == []
    core = [
        name
        for name in library
        if name.split("/")[0] in CORE and not name.endswith(("reasons.py", "entries.py"))
    ]
    assert [text for name in core for text in library[name] if text.startswith("--")] == []


def test_every_field_in_a_message_has_a_flag(library):
    """What is in backticks in a message is a field with a flag, or the command itself."""
    quoted = [
        word for found in library.values() for text in found for word in re.findall("`([^`{}]+)`", text)
    ]
    assert len(set(quoted)) > 5
    fields = {word for word in quoted if not word.startswith("amp-rewrite ")}
    assert {word for word in fields if in_flags(f"`{word}`") == f"`{word}`"} == set()


def test_fields_become_flags_and_all_else_stays():
    """Only what is in backticks and in the table is another text on the command line."""
    error = errors.OptionError("m.onnx is the input", remedy="choose another, or say `in_place=True`")
    assert in_flags(error) == "m.onnx is the input; choose another, or say --in-place"
    assert in_flags("see `amp-rewrite explain`, in_place=True") == "see `amp-rewrite explain`, in_place=True"


def test_all_commands_together_have_at_most_fifty_flags():
    """As --help-all lists them, beside --help, --help-all and --version."""
    commands = [loaded(stub) for stub in main.commands.values()]
    found = {
        max(parameter.opts, key=len)
        for command in commands
        for parameter in command.get_params(click.Context(command))
        if isinstance(parameter, click.Option)
    } - {"--help", "--help-all"}
    assert len(found) <= 50, sorted(found)
    assert run("coverage", "--help").output.count("--rules") == 1


def test_the_help_of_a_rewrite_is_one_screen():
    """`--help` has the common flags, on a line each; `--help-all` has every flag, and what values are for."""
    short = run("rewrite", "--help").output
    assert len(short.splitlines()) <= 48
    assert len(re.findall(r"^  (?:-\w, )?--", short, re.MULTILINE)) == 25
    assert "--opset" in run("rewrite", "--help-all").output
    assert "--show WORD  Show more: all, ranges, case, advice.\n" in run("explain", "--help").output


def test_what_a_flag_needs_is_there():
    """A flag that is renamed takes the metadata with it: some command has all that a need names."""
    commands = list(map(loaded, main.commands.values()))
    flags = [{each.flag: each for each in one.params if hasattr(each, "flag")} for one in commands]
    needs = [(name, need) for own in flags for name, flag in own.items() for need in flag.needs]
    assert needs
    for name, need in needs:
        words = [text.split() for text in (f"{name} {need.word}", need.flag, *need.unless)]
        assert any(all(has(own, *each) for each in words) for own in flags), (name, need)


def has(own, name, word=""):
    """Whether a command has a flag, and the flag the word."""
    flag = own.get(name)
    return flag is not None and (not word or word in (*flag.words, *flag.values) or "FORMAT=" in flag.text)


@pytest.mark.parametrize(("command", "word"), [("train", "verify"), ("tune", "half")])
def test_help_names_what_a_command_takes(command, word):
    """Not what another one takes of the same flag."""
    (line,) = re.findall(r"--require.*", run(command, "--help").output)
    assert line.endswith(f"What the result must be: {word}.")


# ---- what a model says twice and otherwise is refused in one line

UNCHECKED = Options(check=False, metadata=False)
PRODUCT = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
    k = Constant <value_float = 2.0> () h = MatMul (x, x)  m = MatMul (h, w) y = Mul (m, k) }"""


def weight(number):
    """A weight of one number."""
    return numpy_helper.from_array(np.full((4, 4), number, np.float32), "w")


def sparse_weight():
    """A sparse weight of the same name."""
    values = numpy_helper.from_array(np.array([0.5, 0.25], np.float32), "w")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 6])), [4, 4])


def with_two_weights():
    """A weight is stored twice: onnxruntime 1.32 takes the last of small ones, and the first of large."""
    made = text.model(PRODUCT)
    made.graph.initializer.append(weight(2))
    return made


def with_a_sparse_weight():
    """A weight is also stored as a sparse one."""
    made = text.model(PRODUCT)
    made.graph.sparse_initializer.append(sparse_weight())
    return made


def with_two_numbers():
    """A Constant gives two numbers: onnxruntime takes the first, and onnx-ir the last."""
    made = text.model(PRODUCT)
    made.graph.node[0].attribute.append(helper.make_attribute("value_float", 5.0))
    return made


def with_two_functions():
    """A function is there twice."""
    made = onnx.parser.parse_model(text.FUNCTIONS)
    made.functions.append(copy.deepcopy(made.functions[0]))
    made.functions[1].node[0].op_type = "Mul"
    return made


SAID = {
    with_two_weights: "stores 'w' twice, with different values",
    with_a_sparse_weight: "stores 'w' twice, with different values",
    with_two_numbers: "with two attributes 'value_float'",
    with_two_functions: "has two functions '.*twice'",
}


@pytest.mark.parametrize("make", SAID, ids=lambda make: make.__name__)
def test_a_contradiction_is_refused(make):
    """Both by a rewrite and by the certificate: a runtime may read either."""
    for call in (lambda made: rewrite(made, UNCHECKED), lambda made: certify(made, made)):
        with pytest.raises(ModelError, match=SAID[make]):
            call(make())


def test_a_weight_that_is_there_twice_is_left_once():
    """With the same values, whichever counts."""
    made = with_two_weights()
    made.graph.initializer[0].CopyFrom(weight(2))
    result = rewrite(made, UNCHECKED)
    assert len(result.model.graph.initializer) < len(made.graph.initializer)
    assert result.report.certificate.proved
    text.agree(made, result.model)


def test_a_configuration_of_devices_without_a_name_is_left_out():
    """As onnx-ir leaves it out, whose IR version has none: where shapes are inferred, nothing ends there."""
    made = text.unchecked("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[3,2,n] x) => (float[3,n,1] y) <int64[1] o = {2}> { y = ReduceL1 (x, o) }""")
    made.graph.node[0].device_configurations.add(pipeline_stage=1)
    assert measure_coverage(made).nodes.total == 1


# ---- slips that a stranger made with the library and the command line: one line that says what would help

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
