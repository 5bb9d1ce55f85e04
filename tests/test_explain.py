"""`amp-rewrite explain`: of a model, of its result without the original, of a plan without the model."""

import json

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from amp_rewrite import analyze, rewrite
from amp_rewrite.policy.options import Options
from tests import text
from tests.commands import run

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
two_products (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) {
  [product] a = MatMul (x, w)
  [exponential] e = Exp (a)
  [root] r = Sqrt (e)
  [second] y = MatMul (r, w)
}
"""


@pytest.fixture
def model(tmp_path):
    """A model in a folder of its own."""
    path = tmp_path / "model.onnx"
    onnx.save(parse_model(MODEL), path)
    return path


@pytest.fixture
def rewritten(model):
    """What becomes of it, with no original left."""
    made = rewrite(model).model
    model.unlink()
    return made


@pytest.fixture
def plan(model):
    """Its plan, with no model left."""
    path = model.with_name("plan.json")
    assert run(model, "--dry-run", "-q", "--save-plan", path).exit_code == 0
    model.unlink()
    return path


def told(*arguments):
    """What `explain` prints on standard output, in lines; on standard error, that it decided now, if so."""
    result = run("explain", *arguments)
    assert result.exit_code == 0, result.output
    assert not result.stderr or result.stderr.startswith("note     ")
    assert result.stderr.count("\n") <= 1
    return result.stdout.splitlines()


def failure(*arguments):
    """The one line on standard error of a run that must end with exit code 2."""
    result = run("explain", *arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    return line


CAUSE = [
    "2 nodes, 11% of FLOPs: downstream of Exp 'exponential'",
    "  denied: overflows above 11.09, and an error in x becomes a relative error of the result (default)",
]
SIZED = "open dimensions count as 64 (n); --dim NAME=SIZE sets them"


def test_a_model_is_analysed(model):
    """The causes with their share of the arithmetic, a flag that was tried, and what the count rests on."""
    remedy = "  to allow: --list infer=Exp (frees 2 nodes, 11% of FLOPs; not compared)"
    assert told(model) == [*CAUSE, remedy, SIZED]
    assert told(model, "--dim", "n=1000") == [*CAUSE, remedy]


def test_a_rewritten_model_is_explained_from_its_metadata(rewritten):
    """The same without the original; there is nothing to try a flag on, and none is named."""
    flags = "no flag was tried: that needs the original (amp-rewrite explain ORIGINAL)"
    assert told(rewritten) == [*CAUSE, SIZED, flags]


UNTRIED = "no flag was tried: that needs the model (amp-rewrite explain MODEL)"


def test_a_plan_is_explained_without_its_model(plan):
    """The same again: the plan holds the FLOPs, and what they rest on."""
    assert told(plan) == [*CAUSE, SIZED, UNTRIED]


def test_a_plan_with_sizes_assumes_none(model, tmp_path):
    """Where --dim or --data gave the sizes when the plan was made, nothing counts as the default."""
    plan, data = tmp_path / "plan.json", tmp_path / "data.npz"
    np.savez(data, x=np.ones((1000, 4), np.float32), w=np.ones((4, 4), np.float32))
    for flags in (("--dim", "n=1000"), ("--data", data)):
        assert run(model, "--dry-run", "-q", "--save-plan", plan, *flags).exit_code == 0
        assert told(plan) == [*CAUSE, UNTRIED]
        assert json.loads(plan.read_text())["decisions"][1]["flops"] == 4000


def test_a_symbol_has_one_size(tmp_path):
    """A size that is given at one input holds wherever its symbol stands, and nothing is assumed."""
    path = tmp_path / "model.onnx"
    onnx.save(
        parse_model(MODEL.replace("float[4, 4] w)", "float[4, n] w)").replace("[n, 4] x", "[n, 4] x")), path
    )
    assert not any("open dimensions" in line for line in told(path, "--dim", "w:1=4"))


def test_what_no_flag_was_tried_for_names_none(tmp_path):
    """A model, its plan, both together and its result name the same flags, or none and say so."""
    path, plan = tmp_path / "model.onnx", tmp_path / "plan.json"
    onnx.save(parse_model(MODEL), path)
    run(path, "-q", "--save-plan", plan)
    flags = [line for line in told(path) if "--" in line and "--dim" not in line]
    for what in ((plan,), (path, "--plan", plan), (tmp_path / "model_fp16.onnx",)):
        lines = told(*what)
        assert set(flags).isdisjoint(lines)
        assert not any(line.startswith("  to ") for line in lines)
        assert lines[-1].startswith("no flag was tried: ")


DENIED = "denied: overflows above 11.09, and an error in x becomes a relative error of the result (default)"
DOWNSTREAM = "downstream of Exp 'exponential', which is denied or suspect itself"
CHAIN = [
    "Sqrt 'root'",
    f"  float32: Sqrt 'root': {DOWNSTREAM}",
    f"    float32: Exp 'exponential': {DENIED}",
]
PRODUCT = "allowed: tensor cores; the sum of products is kept in float32 (default)"


@pytest.mark.parametrize("kind", ["model", "rewritten", "plan"])
def test_a_chain(kind, request):
    """`explain WHAT NODE` prints the same chain, whatever decided, and then what would change it."""
    assert told(request.getfixturevalue(kind), "root") == [*CHAIN, *AFTER_CHAIN[kind]]


AFTER_CHAIN = {
    "model": [
        "  to allow: --list infer=Exp (frees 2 nodes, 11% of FLOPs; not compared)",
        "  this node in float16 (not compared): --force-half root",
        SIZED,
    ],
    "rewritten": ["no flag was tried: that needs the original (amp-rewrite explain ORIGINAL)"],
    "plan": ["no flag was tried: that needs the model (amp-rewrite explain MODEL)"],
}


FLAGS = {"product": ("half", "float32"), "exponential": ("float32", "half"), "root": ("float32", "half")}


@pytest.mark.parametrize("node", FLAGS)
def test_the_flag_of_a_node_changes_it(model, node):
    """For each colour there is a flag, which gives the node the other one."""
    before, after = FLAGS[node]
    lines = told(model, node)
    assert lines[1].startswith(f"  {before}: ")
    (line,) = (line for line in lines if line.startswith("  this node in "))
    assert line.startswith(
        f"  this node in {'float32' if before == 'half' else 'float16'} (not compared): --"
    )
    assert told(model, node, *line.split(": ")[1].split())[1].startswith(f"  {after}: ")
    told_json = model.with_name("node.json")
    told(model, node, "--json", told_json)
    assert json.loads(told_json.read_text())["units"][0]["change"][-1] == line.strip()


def test_a_node_that_no_flag_changes(model):
    """No pin is offered for what the schema has in float32 alone, or another pin decides."""
    assert not any("this node" in line for line in told(model, "root", "--keep-full", "root"))
    onnx.save(text.model(TREES), model)
    assert not any("--" in line for line in told(model, "trees"))


TREES = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
g (float[2, 2] x) => (float[2, 2] y) { [trees] y = ai.onnx.ml.Normalizer <norm = "L2"> (x) }"""


def test_a_fresh_decision_is_said_to_be_one(model, tmp_path):
    """Of what carries no decisions: an original, a result that did not change; not of a result that did."""
    default = "this is what a rewrite with the defaults decides first, before it compares"
    said = f"carries no decisions of a rewrite; {default}"
    assert run("explain", model).stderr == f"note     model.onnx {said}\n"
    assert "a rewrite with these flags" in run("explain", model, "--deny", "MatMul").stderr
    same, half = tmp_path / "same.onnx", tmp_path / "half.onnx"
    assert run(model, "-o", same, "--deny", "MatMul", "--skip=verify").exit_code == 0
    assert run("explain", same).stderr == f"note     same.onnx {said}\n"
    assert run(model, "-o", half, "--skip=verify").exit_code == 0
    assert run("explain", half).stderr == ""


@pytest.mark.parametrize("kind", ["model", "rewritten", "plan"])
def test_all(kind, request):
    """`explain WHAT --all` has a line for every unit; the first is one in float32."""
    lines = told(request.getfixturevalue(kind), "--show=all")
    assert len(lines) == 4
    assert lines[0].startswith("float32  Exp 'exponential': denied: ")
    assert lines[-1].startswith("half  MatMul 'second': allowed: ")


@pytest.mark.parametrize("kind", ["model", "rewritten", "plan"])
def test_why_a_cast_stands(kind, request):
    """A Cast says who makes the value, who reads it otherwise, and why each has its colour."""
    what = request.getfixturevalue(kind)
    assert told(what, "r__float16") == [
        "Cast of 'r' to float16, added by the rewrite",
        "  the value is produced by",
        *["  " + line for line in CHAIN[1:]],
        "  the result is used by 1 part",
        f"    half: MatMul 'second': {PRODUCT}",
    ]
    assert set(told(what, "r__float16")) < set(told(what, "r")), "after the node that makes it"
    first = "Cast of 'x' to float16, added by the rewrite"
    origin = "  the value is an input of the model, whose type is fixed by the options"
    assert told(what, "x")[:2] == [first, origin]


def test_a_cast_at_the_border(rewritten):
    """What makes an output of the model says so."""
    lines = told(rewritten, "y")
    assert "  the result is an output of the model, whose type is fixed by the options" in lines


GIVEN = """g (float[4, 4] x, int64[4, 4] i) => (float[4, 4] y) {
  [given] f = Cast <to = 1> (i)
  [p] a = MatMul(x, f)
  [e] y = Exp(a)
}"""


def test_a_cast_that_the_model_had(tmp_path):
    """The model's own Casts are told of as well, before and after the rewrite."""
    path = tmp_path / "given.onnx"
    onnx.save(text.model(GIVEN), path)
    for what in (path, rewrite(path).model):
        lines = told(what, "i")
        assert lines[0] == "Cast of 'i' to float32, from the original model"
        assert lines[1] == "  the value has another element type, about which nothing is decided"
        assert lines[2:] == ["  the result is cast again: explain f"]


def as_json(folder, *arguments):
    """The JSON file of a run."""
    path = folder / "told.json"
    told(*arguments, "--json", path)
    return json.loads(path.read_text())


def test_causes_as_json(model, tmp_path):
    """The groups with numbers, places, reasons and flags."""
    found = as_json(tmp_path, model)
    (cause,) = found.pop("causes")
    rest = {"assumptions": [SIZED], "about_flags": []}
    assert found == {"model": str(model), "from": "analysis", **rest}
    assert cause["held"] == ["Exp 'exponential'", "Sqrt 'root'"]
    assert (cause["roots"], cause["flags"], cause["frees"]) == (
        ["Exp 'exponential'"],
        ["--list infer=Exp"],
        2,
    )
    assert cause["flop_share"] == cause["frees_flop_share"] == pytest.approx(8 / 72)


def test_answers_as_json(rewritten, tmp_path):
    """Chains, units and Casts are plain data as well."""
    chain = as_json(tmp_path, rewritten, "root")
    assert chain["from"] == "metadata"
    assert [step["unit"] for step in chain["units"][0]["chain"]] == [
        "Sqrt 'root'",
        "Exp 'exponential'",
    ]
    assert len(as_json(tmp_path, rewritten, "--show=all")["units"]) == 4
    (cast,) = as_json(tmp_path, rewritten, "r")["casts"]
    assert (cast["value"], cast["dtype"], cast["added"], cast["origin"]) == ("r", "float16", True, "unit")
    assert cast["consumers"][0][0]["unit"] == "MatMul 'second'"


def test_flags_ask_for_a_new_analysis(rewritten):
    """A rewritten model is analysed anew where a flag says how; only its Casts still touch float32."""
    first, reason, *_ = told(rewritten, "--allow", "Exp", "--allow", "Sqrt")
    assert first == "3 nodes, 0% of FLOPs: Cast 'x__float16' and 2 more"
    assert reason == "  stays float32: a Cast takes the types that are beside it (default)"


@pytest.mark.parametrize("name", ["plan", "plan.txt", "plan.onnx"])
@pytest.mark.parametrize("start", ["", " \n"])
def test_a_plan_by_any_name(plan, name, start):
    """It is recognised by what is in it, as `--plan` reads any file."""
    expected = told(plan)
    other = plan.with_name(name)
    other.write_text(start + plan.read_text(), encoding="utf-8")
    assert told(other) == expected
    assert told(other, "root") == told(plan, "root")


def test_a_plan_beside_its_model(model):
    """With --plan the reasons are the plan's, edits included."""
    plan = model.with_name("plan.json")
    run(model, "--dry-run", "-q", "--save-plan", plan, "--deny", "MatMul")
    content = json.loads(plan.read_text())
    content["decisions"][2]["precision"] = "half"
    plan.write_text(json.dumps(content))
    lines = told(model, "--plan", plan)
    assert lines[:2] == [
        "2 nodes, 89% of FLOPs: MatMul 'product' and 1 more",
        "  denied: asked for by the user (--deny)",
    ]
    assert lines[-1] == UNTRIED
    assert told(model, "root", "--plan", plan)[1].endswith("changed by hand in the saved plan")
    assert told(plan, "root")[1].endswith("changed by hand in the saved plan")


@pytest.mark.parametrize(
    "damage",
    [{"producer": 99}, {"producer": "a"}, {"consumers": 7}, {"consumers": [-1]}, {"origin": "nowhere"}],
    ids=str,
)
def test_a_damaged_plan(plan, damage):
    """Whatever is wrong with what a plan says of Casts is one line."""
    content = json.loads(plan.read_text())
    content["casts"][0].update(damage)
    plan.write_text(json.dumps(content))
    line = failure(plan)
    assert f"{plan}: is not a valid plan" in line
    assert "make it again with --save-plan" in line


def test_damaged_metadata_is_a_warning(rewritten):
    """What cannot be read is said in one line, and the model is analysed as it stands."""
    made = onnx.load(rewritten)
    made.metadata_props[0].value = "[]"
    onnx.save(made, rewritten)
    result = run("explain", rewritten, "root")
    assert result.exit_code == 0
    line, decided = result.stderr.splitlines()
    assert line.startswith("warning  the decisions in its metadata are damaged")
    assert line.endswith("what follows is a new analysis")
    assert decided.startswith("note ")
    assert result.stdout.splitlines()[0] == "Sqrt 'root'"


def test_without_metadata(model):
    """Asked for none, a result carries its source alone, and is analysed as any model."""
    assert run(model, "--skip=metadata", "--skip=verify", "-q").exit_code == 0
    path = model.with_name("model_fp16.onnx")
    assert [entry.key for entry in onnx.load(path).metadata_props] == ["amp_rewrite.source"]
    assert run("explain", path, "second").exit_code == 2


def test_metadata_of_somebody_else(tmp_path):
    """A name like ours in a model that is not ours means nothing."""
    proto = text.model("amp_rewrite (float[4, 4] x) => (float[4, 4] y) { [e] y = Exp(x) }")
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    assert told(path)[0].startswith("1 node, 100% of FLOPs: Exp 'e'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rot",), "no node is called 'rot'; did you mean root or product?"),
        (
            ("zzzzz",),
            "no node is called 'zzzzz'; leave NODE out to see what keeps nodes in float32, or say --show all",
        ),
        (("r__flat16",), "did you mean r__float16"),
        (("root", "--show", "all"), "NODE and --show all cannot be combined; ask for one at a time"),
        (("--show=all,advice",), "--show all and --show advice cannot be combined"),
        (
            ("--show", "everything"),
            "--show everything is not a choice; it can be all, ranges, case, advice",
        ),
        (("--dim", "m=3"), "the model has no open dimension 'm'"),
        (("--dim", "n"), "--dim n is not NAME=SIZE"),
    ],
)
def test_what_is_wrong_is_one_line(model, arguments, words):
    """Every mistake gets one line that says what would help."""
    assert words in failure(model, *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--deny", "Exp"), "a plan alone has decided everything; leave the other flags out"),
        (("--dim", "n=3"), "a plan alone has decided everything; leave the other flags out"),
        (("--show=advice",), "a plan alone has no shapes; ask for advice on the model, with --plan"),
        (("rot",), "no node is called 'rot'; did you mean root"),
    ],
)
def test_what_a_plan_alone_cannot_do(plan, arguments, words):
    """A plan without its model has its limits, in one line."""
    assert words in failure(plan, *arguments)


def test_a_plan_that_is_not_there(tmp_path):
    """A missing or foreign file is one line."""
    assert "cannot be read" in failure(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("[]")
    assert "is not a valid plan" in failure(tmp_path / "other.json")
    (tmp_path / "other.json").write_text("{}")
    assert "is not a valid plan (object missing required field format)" in failure(tmp_path / "other.json")


def test_names_are_printed_as_they_are(tmp_path):
    """Brackets and emoji in names are text, in causes, chains and Casts."""
    name = "[red]:smile: <x>"
    proto = text.model(GIVEN)
    proto.graph.node[1].name = name
    path = tmp_path / "odd.onnx"
    onnx.save(proto, path)
    made = rewrite(path, Options()).model
    assert any(name in line for line in told(made, "f"))
    assert told(made, name)[0] == f"MatMul '{name}'"


@pytest.mark.parametrize(
    ("operator", "said"), [("MatMul", "fault of amp-rewrite's own"), ("MatMule", "is not a valid model")]
)
def test_who_is_blamed(tmp_path, monkeypatch, operator, said):
    """What fails in no way of ours is blamed on the model where onnx's checker refuses that as well."""

    def fails(*_):
        raise TypeError

    path = tmp_path / "model.onnx"
    onnx.save(parse_model(MODEL.replace("= MatMul (x", f"= {operator} (x")), path)
    monkeypatch.setattr("amp_rewrite.cli.explanation_sources.advise", fails)
    result = run("explain", path, "--show=advice")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


RECAST = """g (int64[4, 4] i, float[4, 4] w) => (float[4, 4] y, float[4, 4] z) <float[4, 4] c> {
  [given] f = Cast <to = 1> (i)
  [p] y = MatMul(f, w)
  [e] z = Exp(f)
  [stored] k = Cast <to = 7> (c)
}"""


def test_who_reads_what_a_cast_of_the_model_makes(tmp_path):
    """Who reads an added Cast behind it is told of that one, before the rewrite and after."""
    path = tmp_path / "model.onnx"
    onnx.save(text.model(RECAST), path)
    for what in (path, rewrite(path).model):
        given = told(what, "given")
        assert "  the result is used by 1 part" in given
        assert any("Exp 'e'" in line for line in given)
        assert not any("MatMul" in line for line in given)
        assert "  the result is cast again: explain f" in given
        assert any("MatMul 'p'" in line for line in told(what, "f__float16"))


def test_a_cast_of_a_stored_value_that_the_model_had(tmp_path):
    """Nothing is said of readers of both types where the Cast is the model's own."""
    path = tmp_path / "model.onnx"
    onnx.save(text.model(RECAST), path)
    assert "  the value is a constant" in told(path, "stored")


LEADS = """g (float[4, 4] x) => (float[4, 4] y) { [p] a = MatMul(x, x)  [s] y = Softmax(a) }"""


def test_what_an_allowed_node_leads_to_is_not_said_to_be_led_to_by_none(tmp_path):
    """A Softmax behind a product, with no product behind it, stays float32 for that and nothing else."""
    path = tmp_path / "model.onnx"
    onnx.save(text.model(LEADS), path)
    assert told(path, "s")[1].endswith(
        "safe in half, but not between nodes that gain from half: it would only add Casts"
    )


@pytest.mark.slow
def test_a_long_chain_is_explained_in_linear_time_and_space(tmp_path):
    """What holds back thousands of nodes is found, and a chain is told by its ends."""
    count = 2_000
    body = "".join(f"[n{i}] v{i + 1} = Sqrt(v{i})  " for i in range(count))
    path = tmp_path / "model.onnx"
    onnx.save(text.model(f"g (float[4] x) => (float[4] v{count}) {{ [e] v0 = Exp(x)  {body} }}"), path)
    assert told(path)[0] == f"{count + 1:,} nodes, 100% of FLOPs: downstream of Exp 'e'"
    lines = told(path, f"n{count - 1}")
    assert len(lines) < 30
    assert "more, down to" in lines[-4]
    assert "Exp 'e'" in lines[-3]
    assert lines[-2].startswith("  no flag frees any (tried: ")
    assert lines[-1] == f"  this node in float16 (not compared): --force-half n{count - 1}"


def test_origins():
    """The end of every chain is found at once, as `why` finds it one by one."""
    found = analyze(text.model(LONG)).decisions()
    assert found.origins() == tuple(found.why(unit)[-1] for unit in range(len(found.all)))


LONG = """g (float[4, 4] x) => (float[4, 4] y) {
  a = MatMul(x, x)  b = Exp(a)  c = Sqrt(b)  d = Abs(c)  f = Log(d)  h = MatMul(f, x)  y = Softmax(h)
}"""


FOLDED = """
g (float[1,4,5,5] x) => (float[1,4,5,5] y)
<float[4,4,1,1] w, float[4] scale, float[4] shift, float[4] mean, float[4] var, float[5] v> {
  [conv] h = Conv (x, w)
  [norm] k = BatchNormalization (h, scale, shift, mean, var)
  [exp] e = Exp (v)
  [add] y = Add (k, e)
}
"""


def test_where_a_folded_node_went(tmp_path):
    """A node that was folded before anything was decided says so, though the result has none of that name."""
    path = tmp_path / "folded.onnx"
    onnx.save(text.model(FOLDED), path)
    assert told(path, "norm") == ["norm: merged into the weights of 'conv', in float32"]
    assert told(path, "exp") == [
        "exp: computed beforehand in float32: it depends on stored values alone",
    ]
    assert told(path, "norm", "--skip=fold")[0].startswith("BatchNormalization 'norm'")
    written = tmp_path / "a.json"
    told(path, "norm", "--json", written)
    assert json.loads(written.read_text())["form"] == ["merged into the weights of 'conv', in float32"]
