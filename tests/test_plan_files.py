import dataclasses
import json

import pytest
from msgspec.structs import replace
from onnx import parser

from amp_rewrite import analyze, rewrite
from amp_rewrite.cli import explanation_sources
from amp_rewrite.errors import OptionError, PlanError
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import IOTypes, Options, Pins
from amp_rewrite.policy.targets import ANY
from amp_rewrite.rewriting.annotations import KEY
from amp_rewrite.rewriting.plan_files import dump, load
from tests import text
from tests.edits import edits

MODEL = """g (float[4, 4] x, int64 n) => (float[4, 4] y, float[4, 4] z) <float[4, 4] w, float[4] v> {
    h = MatMul(x, w)
    [bias] b = Add(h, v)
    [exp] e = Exp(b)
    s = SequenceConstruct(h, h)
    z = SequenceAt(s, n)
    y = LayerNormalization(e, v)
}"""


@pytest.fixture
def model():
    """A model with units of both colours, a tie, and a unit that its schema keeps in float32."""
    return text.model(MODEL)


@pytest.fixture
def saved(tmp_path):
    """Writes a plan, edited if asked, and gives its path."""

    def save(proto, edit=lambda content: content, options=None):
        content = json.loads(dumped(proto, options))
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(edit(content) or content))
        return path

    return save


def dumped(proto, options=None):
    """The text of a model's plan."""
    return dump(analyze(proto, options).saved_plan())


def recoloured(operator, colour):
    """An edit: another colour for all units of an operator."""

    def edit(content):
        for unit in content["decisions"]:
            if unit["operator"] == operator:
                unit["precision"] = colour

    return edit


def refused(proto, path):
    """The one line with which a plan is refused."""
    with pytest.raises(PlanError) as caught:
        rewrite(proto, replay=load(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(follow=False),
        Options(half=BFLOAT16),
        Options(io=IOTypes.HALF),
        Options(io=IOTypes.HALF, keep_io=("x",)),
        Options(target=ANY),
        Options(keep_functions=True),
        Options(fold=False),
        Options(keep_opset=True),
        Options(lists="tensorflow", follow=False),
    ],
)
def test_there_and_back(model, saved, options):
    """A saved plan gives the same painting, and the same bytes, as the run that it was saved from."""
    plan = load(saved(model, options=options))
    assert plan.half is options.half
    assert replace(analyze(model, replay=plan).saved_plan(), where=plan.where) == plan
    once, again = rewrite(model, options), rewrite(model, replay=plan)
    assert again.model.SerializeToString() == once.model.SerializeToString()
    assert again.report.half == options.half.name


def test_a_plan_goes_over_the_options(model, saved):
    """What a plan decides comes from it; what it does not know of stays as the options say."""
    made = Options(
        half=BFLOAT16,
        target=ANY,
        io=IOTypes.HALF,
        keep_io=("x",),
        keep_functions=True,
        fold=False,
        keep_opset=True,
    )
    plan = load(saved(model, options=made))
    assert plan.over(Options(check=False)) == dataclasses.replace(made, check=False)


@pytest.mark.parametrize(
    "options",
    [
        Options(lists="tensorflow"),
        Options(level="unsafe-force-all"),
        Options(follow=False),
        Options(pins=Pins(keep_full="exp")),
    ],
)
def test_options_that_a_plan_would_overrule(model, saved, options):
    """Options that decide are refused beside a plan, which has decided; others go with it."""
    plan = load(saved(model))
    for call in (rewrite, analyze):
        with pytest.raises(OptionError, match="the plan has decided"):
            call(model, options, replay=plan)
    assert KEY not in str(rewrite(model, Options(metadata=False), replay=plan).model)


def test_a_plan_that_kept_the_functions(saved):
    """A plan made with functions left alone is carried out with them left alone."""
    proto = parser.parse_model(text.FUNCTIONS)
    plan = load(saved(proto, options=Options(keep_functions=True)))
    assert len(rewrite(proto, replay=plan).model.functions) == 1


JOINED = """g (float[1, 4, 8] x, float[4, 4, 3] w) => (float[1, 4, 6] y) <float[4] v> {
    h = Conv(x, w)
    y = BatchNormalization(h, v, v, v, v)
}"""


def test_a_plan_for_another_target(saved):
    """A target splits the units as it wants them: a plan brings its own."""
    proto = text.model(JOINED)
    assert dumped(proto, Options(target=ANY)).count('"variable"') > dumped(proto).count('"variable"')
    assert rewrite(proto, replay=load(saved(proto, options=Options(target=ANY)))).report.ok


def test_the_half_of_a_plan_names_the_output(model, saved, tmp_path):
    """A plan in bfloat16 is written to _bf16, whatever the options say."""
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    plan = load(saved(model, options=Options(half=BFLOAT16)))
    assert rewrite(tmp_path / "m.onnx", replay=plan).model.name == "m_bf16.onnx"


def test_one_plan_is_one_text(model):
    """Two runs write the same text."""
    assert dumped(model) == dumped(model)


def test_a_plan_says_what_follows(model):
    """Besides the decisions, a reader finds the Casts."""
    content = json.loads(dumped(model))
    cast = {"names": ["x", "x__float16"], "dtype": "float16", "origin": "input", "producer": None}
    assert {**cast, "consumers": [0], "is_output": False, "added": True} in content["casts"]
    product = next(unit for unit in content["decisions"] if unit["operator"] == "MatMul")
    assert (product["precision"], product["rule"], product["kind"]) == ("half", "allow", "allow")


def test_an_edited_colour_is_carried_out(model, saved):
    """A colour that is changed in the file is the colour that the node gets."""
    assert "e = Exp(b)" in text.nodes(rewrite(model).model)
    edited = rewrite(model, replay=load(saved(model, recoloured("Exp", "half")))).model
    assert "e = Exp(b__float16)" in text.nodes(edited)


def test_a_plan_can_be_emptied(model, saved):
    """With every colour set to full, nothing changes."""

    def empty(content):
        for unit in content["decisions"]:
            unit["precision"] = "full"

    assert rewrite(model, replay=load(saved(model, empty))).model == model


def test_a_plan_for_another_model(model, saved):
    """A plan is refused for a model with other nodes, other names, or other stored types."""
    path = saved(model)
    for before, after in (("Exp", "Relu"), ("[exp]", "[other]"), ("float[4] v>", "float[1] v>")):
        assert "made for another model" in refused(text.model(MODEL.replace(before, after)), path)


def test_other_weights_are_the_same_model(model, saved):
    """The numbers in the weights do not count: a plan serves a model that was trained further."""
    path = saved(model)
    for tensor in model.graph.initializer:
        tensor.raw_data = bytes(len(tensor.raw_data))
    assert rewrite(model, replay=load(path)).report.ok


def test_what_a_schema_does_not_allow(saved):
    """A unit whose type the schema fixes cannot be edited to half."""

    def edit(content):
        for unit in content["decisions"]:
            if unit["variable"] == "U":
                unit["precision"] = "half"

    proto = text.model(MODEL.replace("y = Layer", "y, m = Layer"))
    assert "its schema does not allow it" in refused(proto, saved(proto, edit))


def test_a_tie_has_one_colour(model, saved):
    """The ends of a sequence cannot be edited apart."""
    colour = next(u for u in json.loads(dumped(model))["decisions"] if u["operator"] == "SequenceAt")[
        "precision"
    ]
    other = {"half": "full", "full": "half"}[colour]
    assert "must have one precision" in refused(model, saved(model, recoloured("SequenceAt", other)))


DAMAGE = {
    "no JSON": b"{",
    "nothing": b"",
    "a list": b"[]",
    "a number": b"7",
    "nested without end": b"[" * 100_000,
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_no_plan(model, tmp_path, damage):
    """A file that holds something else is refused, and so are a missing file and a folder."""
    (tmp_path / "plan.json").write_bytes(damage)
    refused(model, tmp_path / "nope.json")
    refused(model, tmp_path)
    line = refused(model, tmp_path / "plan.json")
    assert "`Analysis.save_plan`" in line or damage.startswith(b"\xff")


PARTS = [
    *("format", "model", "options", "decisions"),
    *(f"options.{key}" for key in "half target io keep_io keep_functions kept_operators op_types".split()),
    *(f"decisions.0.{key}" for key in "operator variable precision rule kind evidence".split()),
    *("decisions.0.evidence.authority", "casts.0.origin", "casts.0.consumers"),
]
ODD = [
    *(("decisions.0.precision", odd, "") for odd in ("blue", None, 1, [])),
    *(("decisions.0.cause", odd, "decisions[0].cause") for odd in (99, -1, "x")),
    *(("casts.0.producer", odd, "casts[0]") for odd in (99, -1, "x")),
    # JSON has integers of any length, and a float holds no such number
    *(("decisions.0.evidence.number", odd, "decisions[0].evidence.number: ") for odd in (10**400, "7")),
    *(("decisions.0.evidence.limit", odd, "") for odd in (10**400, "7")),
    *(("format", odd, f"format {odd}, and 5 is read here") for odd in (0, 1, 2, 3, 4)),
    *(("format", odd, "format another, and 5 is read here") for odd in ("5", None)),
    ("options.half", "float8", "float8"),
    ("options.target", "toaster", "is not a valid plan"),
    ("options.io", "quarter", "is not a valid plan"),
    ("options.keep_io", "x", "is not a valid plan"),
    ("options.keep_io", [1], "is not a valid plan"),
    ("options.keep_functions", "no", "is not a valid plan"),
]


def part(content, place):
    """What holds a part of plain data, and the part's key there."""
    *outer, key = place.split(".")
    for each in outer:
        content = content[int(each) if each.isdigit() else each]
    return content, key


@pytest.mark.parametrize("place", PARTS)
def test_what_a_plan_lacks(model, saved, place):
    """A plan, a decision or a Cast without one of its parts is refused."""

    def edit(content):
        holder, key = part(content, place)
        del holder[key]

    refused(model, saved(model, edit))


@pytest.mark.parametrize(("place", "odd", "said"), ODD, ids=lambda value: str(value)[:30])
def test_what_a_plan_cannot_say(model, saved, place, odd, said):
    """A precision, a cause, a number, a version or a run that is none is refused."""

    def edit(content):
        holder, key = part(content, place)
        holder[key] = odd

    assert said in refused(model, saved(model, edit))


@pytest.mark.slow
def test_whatever_stands_in_a_plan(model, tmp_path):
    """A plan is carried out and explained, or refused as a plan: an odd field is nothing else's fault."""
    path, refusals = tmp_path / "plan.json", set()
    for edited in edits(json.loads(dumped(model))):
        path.write_text(json.dumps(edited))
        try:
            explanation_sources.of_plan(path)
            rewrite(model, Options(check=False), replay=load(path))
        except (PlanError, OptionError) as error:  # keep_io may name what the model lacks
            refusals.add(str(error).partition("is not a valid plan ")[2])
    for problem in (
        "casts[0].consumers: expected array, got int",
        "decisions[1].rule: invalid enum value 'x'",
        "decisions[1]: object missing required field rule",
    ):
        assert any(problem in refusal for refusal in refusals)
