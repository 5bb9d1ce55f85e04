"""The command line when it compares: verdicts, exit codes, and what it advises."""

import json
import re
import shlex
import sys
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from amp_rewrite import pipeline
from amp_rewrite.demo import network

pytest.importorskip("onnxruntime")
from amp_rewrite.running.inputs import feeds
from tests import text
from tests.commands import failure, rows, run

OVERFLOW = """<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {
    [shift] s = Add (x, x) [square] a = Mul (s, s) [root] y = Sqrt (a) }"""
OWN = """<ir_version: 9, opset_import: ["": 17, "own": 1]> g (float[2,2] x) => (float[2,2] y) {
    a = MatMul (x, x) y = own.Op (a) }"""
FORCED = ("--level", "unsafe-force-all")


@pytest.fixture
def model(tmp_path):
    """A model that is fine in float32, and overflows in float16 on the inputs beside it."""
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(OVERFLOW), path)
    np.savez(tmp_path / "large.npz", x=np.float32([150, 1]))
    np.savez(tmp_path / "small.npz", x=np.float32([2, 1]))
    return path


def data(model, name):
    """The flag for one of the inputs beside a model."""
    return ("--data", model.with_name(f"{name}.npz"))


RUNS = """
model.onnx --level unsafe-force-all --data large.npz
    | 1 | Mul 'square', whose inputs range from 2 to 300 & --keep-full square
model.onnx --level unsafe-force-all --data large.npz --in-place     | 1 | --keep-full square
model.onnx --level unsafe-force-all --data small.npz                | 0 | PASS & no --keep-full
model.onnx --level unsafe-force-all --skip verify                     | 0 | not compared & no compared with
model.onnx --level unsafe-force-all --data nan.npz
    | 1 | y: proves nothing: NaN or infinities in input 'x' & no PASS & no next
verify model.onnx model.onnx --data nan.npz                         | 1 | no PASS
model.onnx --deny Add --deny Mul --deny Sqrt --require verify       | 0 | PASS & largest error 0.0e+00
own.onnx | 0 | not compared with the original, which does not load: onnxruntime refuses
verify model.onnx own.onnx | 1 | not compared with the original: it does not run & no relative L2
"""


@pytest.mark.parametrize(("arguments", "exit_code", "phrases"), rows(RUNS))
def test_a_run_ends_with_its_verdict(model, monkeypatch, arguments, exit_code, phrases):
    """0 for a good one or none, 1 for a bad one, whose result is written; what is said holds for the data."""
    monkeypatch.chdir(model.parent)
    np.savez("nan.npz", x=np.float32([np.nan, np.nan]))
    onnx.save(parser.parse_model(OWN), "own.onnx")
    result = run(*arguments.split())
    assert result.exit_code == int(exit_code)
    for phrase in phrases.split(" & "):
        assert (phrase.removeprefix("no ") in result.output) != phrase.startswith("no ")
    if arguments.startswith("model.onnx") and "--in-place" not in arguments:
        assert Path("model_fp16.onnx").exists()


def test_the_flag_that_is_advised_helps(model):
    """With the flags that are advised the same rewrite passes."""
    first = run(model, *FORCED, *data(model, "large"))
    advised = first.output.strip().splitlines()[-1].partition("#")[0].split()[2:]
    assert advised == ["--keep-full", "square", "--keep-full", "root"]
    assert run(model, *FORCED, *data(model, "large"), *advised).exit_code == 0


def test_a_bad_verdict_is_told_when_all_is_quiet(model):
    """With -q a bad verdict still goes to standard error."""
    result = run(model, *FORCED, *data(model, "large"), "-q")
    assert result.exit_code == 1
    assert "--keep-full square" in result.stderr
    assert result.stdout == ""


def test_verify_says_yes(model):
    """`verify` of a good rewrite ends with 0 and shows every output."""
    run(model, "-q")
    result = run("verify", model, model.with_name("model_fp16.onnx"), *data(model, "large"), "-v")
    assert result.exit_code == 0
    assert "half emulated" in result.output
    assert result.output.splitlines()[-1].startswith("PASS  ")


def test_verify_says_no_and_why(model, tmp_path):
    """`verify` of a bad one ends with 1, with the bounds that broke, and the same as JSON."""
    run(model, *FORCED, "--skip=verify", "-q")
    path = tmp_path / "verdict.json"
    pair = (model, model.with_name("model_fp16.onnx"))
    result = run("verify", *pair, *data(model, "large"), "--json", path)
    assert result.exit_code == 1
    assert re.search(r"^y +1 inf or NaN +1e-02  FAIL", result.output, re.MULTILINE)
    assert "FAIL  " in result.output
    assert "y: non_finite 1 is above 0" in run("verify", *pair, *data(model, "large"), "-v").output
    verdict = json.loads(path.read_text())
    assert verdict["ok"] is False
    assert verdict["outputs"][0]["metrics"]["non_finite"] == 1
    assert verdict["blame"]["first_lost"]["node"] == "square"


def test_a_long_name_is_printed_whole(tmp_path):
    """In a pipe no name is cut: two outputs may differ in their ends alone."""
    path, name = tmp_path / "long.onnx", "decoder_" * 6 + "end"
    onnx.save(parser.parse_model(OVERFLOW.replace("y", name)), path)
    lines = run("verify", path, path).stdout.splitlines()
    assert name == lines[1].split("  ")[0]


def test_tolerances_decide(model):
    """A bound that is moved or taken away changes the verdict."""
    run(model, *FORCED, "--skip=verify", "-q")
    pair = (model, model.with_name("model_fp16.onnx"), *data(model, "small"))
    assert run("verify", *pair).exit_code == 0
    np.savez(model.with_name("rounded.npz"), x=np.float32([1.3, 1]))
    rounded = (*pair[:2], *data(model, "rounded"))
    assert run("verify", *rounded).exit_code == 0
    assert run("verify", *rounded, "--tolerance", "relative_l2=0").exit_code == 1
    lost = (model, model.with_name("model_fp16.onnx"), *data(model, "large"))
    free = [flag for name in ("non_finite", "relative_l2") for flag in ("--tolerance", f"{name}=none")]
    assert run("verify", *lost, *free).exit_code == 0


MISTAKES = {
    "--data missing.npz": "there is no such file",
    "--dim missing=3": "no open dimension 'missing'",
    "--tolerance 1e-4": "write NAME=BOUND, as in error=1e-4",
    "--tolerance error:1e-4": "write NAME=BOUND, as in error=1e-4",
    **{
        f"--tolerance {bound}": f"{bound} is out of range"
        for bound in ("relative_l2=nan", "relative_l2=-1", "top1=2", "non_finite=-1", "cosine=1.1")
    },
    "verify none.onnx": "none.onnx: there is no such file",
    "verify MODEL --data none.npz": "none.npz",
    "verify MODEL --tolerance l2=1": "there is no tolerance l2",
    "verify MODEL --dim batch": "--dim batch is not NAME=SIZE",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_what_is_wrong_is_one_line(model, arguments):
    """A slip must not pass as a rewrite that was compared, and a bound that all or none break is one."""
    command, *flags = arguments.replace("MODEL", str(model)).split()
    line = failure("verify", model, *flags) if command == "verify" else failure(model, command, *flags)
    assert MISTAKES[arguments] in line
    assert not model.with_name("model_fp16.onnx").exists()


def test_names_with_brackets_are_printed_as_they_are(tmp_path):
    """A name is text, whatever a terminal library makes of brackets and colons."""
    name = "x[/b] [red] :smile:"
    made = parser.parse_model(OVERFLOW)
    made.graph.node[1].name = name
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    np.savez(tmp_path / "large.npz", x=np.float32([150, 1]))
    result = run(path, *FORCED, *data(path, "large"), "--per-node", "--save-plan", tmp_path / "plan.json")
    assert result.exit_code == 1
    assert f"Mul '{name}'" in result.output
    assert name in run("explain", path).output
    assert "1 of 3" in run(path, "--dry-run", "--allow", "Sqrt").output


def test_without_onnxruntime_the_advice_works(model, monkeypatch):
    """It names a package on PyPI, which amp-rewrite is not."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install onnxruntime\n" in run(model, *FORCED).output


def reported(path, *flags):
    """What a run says as JSON."""
    report = path.with_name("report.json")
    run(path, "--json", report, *flags)
    return json.loads(report.read_text())


def test_json_says_why_there_is_no_verdict(tmp_path):
    """A pipeline can tell a model that could not be compared from one that was not to be."""
    path = tmp_path / "own.onnx"
    onnx.save(parser.parse_model(OWN), path)
    refused = reported(path)
    assert "refuses the model" in refused["verification"]["not_compared"]
    assert (refused["ok"], refused["verified"]) == (True, False)
    assert "refuses the model" in refused["not_verified"]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--skip=verify",), "--skip verify was given"),
        (("--dry-run",), "--dry-run was given"),
        (("--deny", "Add", "--deny", "Mul", "--deny", "Sqrt"), "nothing changed"),
    ],
)
def test_json_says_that_nobody_asked(model, flags, why):
    """Without a comparison nothing is verified; that is told in JSON, and under -q where nothing is half."""
    found = reported(model, *flags)
    assert (found["verified"], found["not_verified"], found["verification"]) == (False, why, None)
    quiet = run(model, *flags, "-q")
    assert (quiet.exit_code, "nothing became float16" in quiet.stderr) == (0, why != "--dry-run was given")


def test_json_says_what_was_verified_and_on_what(model, tmp_path):
    """A good verdict is verified, a bad one is not; both say where the inputs came from."""
    good = reported(model, *FORCED, *data(model, "small"))
    assert (good["verified"], good["not_verified"]) == (True, None)
    paths = [str(model.with_name("small.npz"))]
    inputs = {"synthetic": False, "seed": None, "paths": paths, "images": None, "change": ""}
    assert good["verification"]["inputs"] == inputs
    bad = reported(model, *FORCED, *data(model, "large"))
    assert not bad["verified"]
    assert "y: non_finite 1 is above 0" in bad["not_verified"]
    made = tmp_path / "verdict.json"
    run("verify", model, model, "--seed", "3", "--json", made)
    made = json.loads(made.read_text())
    assert (made["verified"], made["not_verified"], made["inputs"]["seed"]) == (True, None, 3)


def test_not_compared_is_never_silent(tmp_path):
    """With -q the line goes to standard error; with --require verify the exit code is 1."""
    path = tmp_path / "own.onnx"
    onnx.save(parser.parse_model(OWN), path)
    quiet = run(path, "-q")
    assert (quiet.exit_code, quiet.stdout) == (0, "")
    assert quiet.stderr.startswith("not compared with the original, which does not load: onnxruntime refuses")
    required = run(path, "-q", "--require=verify")
    assert required.exit_code == 1
    assert required.stderr == quiet.stderr
    assert path.with_name("own_fp16.onnx").exists()


def test_a_source_that_is_deleted_midway_is_not_compared(model, monkeypatch):
    """The result stands, and a line says that nothing was compared."""
    whole = pipeline.rewrite

    def rewrite(source, *arguments, **options):
        made = whole(source, *arguments, **options)
        source.unlink()
        return made

    monkeypatch.setattr(pipeline, "rewrite", rewrite)
    result = run(model, "-q", "--require=verify")
    assert result.exit_code == 1
    nothing, line = result.stderr.splitlines()
    assert nothing.startswith("nothing became float16")
    assert line.startswith("not compared with the original: ")
    assert "there is no such file" in line


OUTSIDE = """<ir_version: 9, opset_import: ["": 17]> g (float[n,4] x) => (float[n,4] y)
    <float[4,4] w = ["location": "w.data"]> { y = MatMul (x, w) }"""


BAKED = """<ir_version: 9, opset_import: ["": 17]>
    g (float[batch,length] x) => (float[batch,k] y) <int64[2] shape = {-1, 7}> {
        a = Relu (x) s = Reshape (a, shape) t = MatMul (s, s) y = Relu (t) }"""


def test_a_size_that_does_not_fit_names_the_dimension(tmp_path):
    """Where a run fails on sizes that were made up, the line names them all and the flag that sets them."""
    path = tmp_path / "baked.onnx"
    onnx.save(parser.parse_model(BAKED), path)
    said = "have batch = 1, length = 512: give other sizes with --dim batch=SIZE --dim length=SIZE"
    result = run(path, "-q")
    assert result.exit_code == 0
    assert said in result.stderr
    for command in (("verify", path, path), ("bench", path)):
        failed = run(*command)
        assert failed.exit_code == 2
        assert said in failed.stderr
    assert said not in run("verify", path, path, "--dim", "batch=7", "--dim", "length=7").output


def test_a_failure_on_made_up_inputs_says_so(model):
    """The verdict says what it saw; one that is bad on made-up inputs suggests some that are not."""
    made = run(model, "--level", "unsafe-force-all", "--tolerance", "relative_l2=0", "--seed", "5", "-v")
    assert made.exit_code == 1
    assert "on 1 synthetic sample (seed 5); CPU" in made.output
    assert "--data FILE.npz   # these inputs were synthetic" in made.output.splitlines()[-1]
    given = run(model, *FORCED, *data(model, "large"), "-v")
    assert f"on 1 given sample from {model.with_name('large.npz')}; CPU" in given.output
    assert "made up" not in given.output


def test_what_proves_nothing_on_synthetic_inputs_is_no_failure(tmp_path):
    """Float32 itself is NaN: exit code 0, and 1 where evidence is required, or on given inputs."""
    path, result = tmp_path / "m.onnx", tmp_path / "r.onnx"
    body = "a = MatMul (x, w) b = Mul (a, a) c = Neg (b) n = Sqrt (c) y = Add (a, n)"
    onnx.save(text.model(f"g (float[4,8] x) => (float[4,8] y) <float[8,8] w> {{ {body} }}"), path)
    np.savez(tmp_path / "in.npz", x=np.ones((4, 8), np.float32))
    for command, code in (
        ((path, "-o", result), 0),
        (("verify", path, result), 0),
        ((path, "-o", result, "--require", "verify"), 1),
        ((path, "-o", result, "--data", tmp_path / "in.npz"), 1),
        (("verify", path, result, "--data", tmp_path / "in.npz"), 1),
    ):
        done = run(*command)
        assert (done.exit_code, "no value of the original is finite" in done.output) == (code, True)


ALLOWED = ("--allow", "Mul", "--skip", "repair")


@pytest.mark.parametrize("flags", [(), FORCED, ALLOWED, (*FORCED, "--per-node"), (*ALLOWED, "--per-node")])
@pytest.mark.parametrize("name", ["small", "large"])
def test_what_to_do_next_is_said_once_and_last(model, flags, name):
    """A bad verdict has advice, and a good one none on it."""
    result = run(model, *flags, *data(model, name))
    lines = result.output.splitlines()
    at = [i for i, line in enumerate(lines) if line.startswith("next")]
    assert at in ([], [len(lines) - 1])
    assert any(word in result.output for word in ("--keep-full", "leave the model")) is (
        result.exit_code == 1
    )


@pytest.fixture
def folder(model):
    """A folder of three samples, of which the second is not one of this model."""
    made = model.with_name("samples")
    made.mkdir()
    for name, size in (("a", 2), ("b", 3), ("c", 2)):
        np.savez(made / f"{name}.npz", x=np.ones(size, np.float32))
    return made


def test_a_bad_sample_among_good_ones_is_found_before_anything_is_written(model, folder):
    """One line names the file; there is no result, no report, and nothing else."""
    before = sorted(model.parent.rglob("*"))
    flags = ("--data", folder, "--json", model.with_name("r.json"), "--save-plan", model.with_name("p.json"))
    result = run(model, *flags)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "b.npz" in line
    assert sorted(model.parent.rglob("*")) == before
    verified = run("verify", model, model, "--data", folder, "--json", model.with_name("v.json"))
    assert (verified.exit_code, "b.npz" in verified.stderr) == (2, True)
    assert sorted(model.parent.rglob("*")) == before


def test_samples_are_read_one_at_a_time(model, folder, monkeypatch):
    """At most one sample is in memory while all are checked beforehand."""
    (folder / "b.npz").unlink()
    arrays, read_all = [], feeds.read

    def read(*arguments):
        assert sum(array() is not None for array in arrays) <= 1
        found = read_all(*arguments)
        arrays.append(weakref.ref(found["x"]))
        return found

    monkeypatch.setattr(feeds, "read", read)
    assert run(model, "--data", folder).exit_code == 0


def test_in_place_over_external_data_is_compared(tmp_path):
    """What is replaced stands, with its weights, until the verdict on the result is known."""
    path = tmp_path / "model.onnx"
    made = parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[n,64] x) => (float[n,64] y) { y = MatMul (x, w) }""")
    weights = np.random.default_rng(0).random((64, 64), np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(made, path, save_as_external_data=True, location="model.data", size_threshold=0)
    result = run(path, "--in-place", "--require=verify")
    assert result.exit_code == 0
    assert "PASS" in result.output
    assert (onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0]) == weights.astype("f2")).all()


def test_a_replayed_plan_is_compared_with_the_borders_that_it_has(model, tmp_path):
    """A plan that halves inputs and outputs is no broken signature when it is carried out again."""
    plan = tmp_path / "plan.json"
    run(model, "--save-plan", plan, "--io", "half", "--allow", "Mul", "--skip=verify")
    assert run(model, "--plan", plan, *data(model, "small")).exit_code == 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="a folder that nobody can write to")
def test_a_model_in_a_folder_that_cannot_be_written_to(model, tmp_path):
    """One line says where the result cannot stand, and which flag names another place."""
    with model.open("rb") as opened:
        path = Path(f"/proc/self/fd/{opened.fileno()}")
        result = run(path, *FORCED)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert f"{path}_fp16.onnx: cannot be written" in line
        assert "with -o" in line
        assert run(path, *FORCED, "-o", tmp_path / "out.onnx").exit_code == 0


def test_a_model_whose_data_is_missing(tmp_path):
    """One line names the file that should be there, and nothing is written."""
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(OUTSIDE), path)
    for command in ((path,), ("verify", path, path)):
        result = run(*command)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert "the data of 'w' should be in w.data" in line
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_what_is_next_after_a_bad_verdict_is_said(model, tmp_path, to):
    """Pins for the original, which can be rewritten with them; and the commands that search and prove."""
    np.savez(tmp_path / "thirds.npz", **{k: v / 3 for k, v in np.load(model.with_name("small.npz")).items()})
    half, given = tmp_path / "h.onnx", ("--data", tmp_path / "thirds.npz", "--tolerance", "error=1e-6")
    run(model, *FORCED, "--skip=verify", "-o", half, "--to", to)
    done = run("verify", model, half, *given, "--json", tmp_path / "v.json")
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[-3].startswith(f"next  amp-rewrite {model} --keep-full ")
    assert lines[-2].strip().startswith(f"amp-rewrite tune {model}   # searches ")
    assert lines[-1].strip().startswith(f"amp-rewrite certify {model} {half}   # says ")
    pins = shlex.split(lines[-3].partition(str(model))[2], comments=True)
    assert run(model, *pins, "--to", to, "-o", tmp_path / "again.onnx").exit_code in (0, 1)


def test_a_node_has_one_figure_for_what_it_adds(model):
    """What rounding adds to the outputs, and beside it how far off its own value is."""
    done = run(model, *FORCED, *data(model, "small"), "--per-node")
    assert re.search(r" adds [\d.e+-]+ to the outputs; its own error [\d.e+-]+$", done.output, re.MULTILINE)
    assert "error 0.0e+00, adds" not in done.output


def test_the_original_comes_first(model):
    """Where the first model has half and the second none, a line has the command the other way round."""
    half = model.with_name("model_fp16.onnx")
    run(model, *FORCED, "--skip=verify", "-q")
    lines = run("verify", half, model, *data(model, "small")).output.splitlines()
    (line,) = (line for line in lines if line.startswith("swapped? "))
    assert line.endswith(f"the original comes first (amp-rewrite verify {model} {half})")
    for pair in ((model, half), (model, model), (half, half)):
        output = run("verify", *pair, *data(model, "small")).output
        assert "swapped?" not in output
        assert (f"nothing in {model} is half, nor in {model}" in output) == (pair == (model, model))


def test_a_proof_that_fails_says_that_the_original_comes_first(tmp_path):
    """Where the first model has half and the second none, a line has the command the other way round."""
    path, half = tmp_path / "m.onnx", tmp_path / "h.onnx"
    onnx.save(network(), path)
    run(path, "-o", half, "--skip=verify", "-q")
    done = run("certify", half, path)
    assert done.exit_code == 1
    assert f"the original comes first (amp-rewrite certify {path} {half})" in done.stdout.splitlines()[0]
    assert "swapped?" not in run("certify", path, half).stdout


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_half_inputs_and_outputs_name_the_flag_that_takes_them(model, to):
    """Types that differ are no comparison; with the flag they are."""
    half = model.with_name("half.onnx")
    run(model, "-o", half, "--to", to, "--io", "half", "--skip=verify", "-q")
    pair = ("verify", model, half, *data(model, "small"))
    done = run(*pair)
    assert (done.exit_code, done.output.splitlines()[-1][:15]) == (1, "next  add --io ")
    assert "not compared with the original" not in run(*pair, "--io", "half").output


def test_a_pin_in_half_that_is_to_blame_is_left_out(model):
    """Beside the pin that is advised it would be a contradiction."""
    half = model.with_name("model_fp16.onnx")
    run(model, "--force-half", "square", *FORCED, "--skip=verify", "-q")
    lines = run("verify", model, half, *data(model, "large")).output.splitlines()
    pins = next(line.partition(str(model))[2] for line in lines if line.startswith("next "))
    assert "--keep-full square" in pins
    assert "--force-half" not in pins
    assert run(model, *shlex.split(pins, comments=True)).exit_code == 0


# ---- the answer in short


def test_the_worst_outputs_come_first_and_the_rest_with_v(tmp_path):
    """Five rows, and a line that counts the others; none of these in the table with -v."""
    names = [f"y{at}" for at in range(7)]
    nodes = "".join(f"{name} = Mul (x, k{at}) " for at, name in enumerate(names))
    outs = ", ".join(f"float[4] {name}" for name in names)
    models = []
    for factor in (1.0, 1.001):
        stored = ", ".join(f"float k{at} = {{{1 + at * (factor - 1)}}}" for at in range(7))
        text = (
            f"""<ir_version: 9, opset_import: ["": 17]> g (float[4] x) => ({outs}) <{stored}> {{ {nodes} }}"""
        )
        models.append(tmp_path / f"{factor}.onnx")
        onnx.save(parser.parse_model(text), models[-1])
    lines = run("verify", *models).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == names[:1:-1]
    assert lines[6] == "and 2 more outputs, none of them worse (-v)"
    assert lines[7].startswith(f"PASS  {models[1]}  largest error 6.0e-03 (limit 1e-02, made-up inputs)")
    every = run("verify", *models, "-v").stdout
    assert all(re.search(rf"^{name} ", every, re.MULTILINE) for name in names)


def test_an_output_that_is_not_float_has_its_share_of_differences(tmp_path):
    """In place of an error, with the limit of that."""
    body = "g (float[8] x) => (float[8] y, int64[8] n) { y = Identity (x) n = Cast <to = 7> (x) }"
    onnx.save(parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {body}'), tmp_path / "m.onnx")
    told = run("verify", tmp_path / "m.onnx", tmp_path / "m.onnx").stdout
    assert re.search(r"^n +0\.0% differ +1% +PASS", told, re.MULTILINE)
    assert "largest error 0.0e+00 (limit 1e-02, made-up inputs)" in told.splitlines()[-1]
