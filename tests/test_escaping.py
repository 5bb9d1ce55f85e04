"""Nothing that a model, a file or a command line says reaches a terminal or a log as more than text."""

import json
import re
from xml.etree import ElementTree as ET

import pytest

from amp_rewrite.cli import main
from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.text import LONGEST_NAME, brief, shortened, visible
from tests import text
from tests.commands import run

# ---- one text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x00\x1b[31m\x7f", r"\x00\x1b[31m\x7f"),
        ("\x85\x9b31m", r"\x85\x9b31m"),
        ("\u202e\u2066\u200f\u061c\u2028\u2029", r"\u202e\u2066\u200f\u061c\u2028\u2029"),
        ("\ud800\udcff", r"\ud800\udcff"),
        ("\u200b\ufeff\U000e0041", r"\u200b\ufeff\U000e0041"),
        ("é 漢字 \\n ñ", "é 漢字 \\n ñ"),
        ("::error::x", r"\x3a:error::x"),
        ("  ::error::x", r"  \x3a:error::x"),
        ("aten::add", "aten::add"),
        ("x ##[error]y ##vso[task.x]z ###[q", r"x \x23#[error]y \x23#vso[task.x]z #\x23#[q"),
    ],
)
def test_what_is_no_text_is_written_out(given, shown):
    """Controls, line ends, marks of direction, surrogates and commands of a CI; other alphabets stay. What is
    visible already stays as it is.
    """
    assert visible(given) == shown
    assert visible(shown) == shown


def test_a_name_beyond_reason_is_cut_in_its_middle():
    """Words and quotations alike, with both ends left; text of many short names stays whole."""
    assert shortened("abcdefghij", 7) == "ab...ij"
    assert brief(f"no {'a' * 5000}z there") == f"no {'a' * 99}...{'a' * 97}z there"
    assert len(brief(f"no '{'a b ' * 5000}' there")) == len("no  there") + LONGEST_NAME
    assert brief("--keep-full a " * 500) == "--keep-full a " * 500
    assert brief(brief("\n" * 5000)) == brief("\n" * 5000)


def test_an_error_is_one_visible_line():
    """Whatever is in its parts, which hold it as it is."""
    error = ModelError("no 'a\nb\u202e'", where="p\x1b[1m", remedy="try '\r'")
    assert str(error) == r"p\x1b[1m: no 'a\nb\u202e'; try '\r'"
    assert error.problem == "no 'a\nb\u202e'"
    assert len(str(OptionError(" ".join(["a b"] * 5000)))) == 1000


# ---- all commands

FORBIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
EVIL = "a\nz\n::error file=x::pwned\r\x1b[31m\x00\x7f\x9b1m\t\u202e\u2066\u200f\u061c\u2028\x85<script>'\"%"
PATH = EVIL.replace("\x00", "")  # which no path has
OURS = re.compile(r"::(error|warning|notice) file=[^:,]*,title=coverage")


def evil(what):
    """A name of its own for each thing: one that begins as a command does, or holds one."""
    return f"::error::{what}{EVIL}{'x' * 5000 if what == 'long' else ''}"


def hostile(*, is_run=False):
    """A model in which every text that a model can hold is more than a name; one that is run has no operator
    that nobody knows.
    """
    proto = text.unchecked("""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[n, 2] x) => (float[n, 2] y, u) <float[2, 2] w = {1, 0.3, 0.3, 1}> {
            h = MatMul (x, w)  e = Exp (h)  r = Sqrt (e)
            long = MatMul (r, w)  y = Add (long, h)  u = mine.Odd (y)
        }""")
    graph = proto.graph
    if is_run:
        del graph.node[-1], graph.output[-1]
    for node in graph.node:
        node.name = evil(node.output[0])
        node.input[:] = map(evil, node.input)
        node.output[:] = map(evil, node.output)
        if node.domain:
            node.domain, node.op_type = evil("domain"), evil("Odd")
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = evil(value.name)
    for value in (graph.input[0], graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = evil("n")
    proto.opset_import[1].domain = evil("domain")
    graph.name, graph.doc_string = evil("graph"), evil("doc")
    proto.producer_name = evil("producer")
    proto.metadata_props.add(key=evil("key"), value=evil("value"))
    return proto


@pytest.fixture
def model(tmp_path):
    """The hostile model, in a folder of its own."""
    path = tmp_path / "model.onnx"
    path.write_bytes(hostile().SerializeToString())
    return path


def tame(result):
    """What a command printed, of which no character is more than text and no line a command of others'."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    for stream in (result.stdout, result.stderr):
        assert not (found := FORBIDDEN.search(stream)), stream[max(0, found.start() - 40) : found.end()]
        for line in stream.splitlines():
            assert not line.strip().startswith("::") or OURS.match(line), line
            assert len(line) < 8000
            assert "--keep-full " in line or "x" * (LONGEST_NAME + 1) not in line  # in flags names are whole
        assert "##[" not in stream
    return result.stdout + result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--dry-run",),
        ("explain",),
        ("explain", "--show=all"),
        ("explain", "--show=advice"),
        ("explain", evil("r")),
        ("explain", evil("nobody")),
        ("explain", evil("h")),
        ("coverage", "--show=github", "--rules=min-flops=1", f"--rules=forbid-half={evil('Odd')}"),
        ("coverage", "--rules", f"require={evil('Odd')}=2"),
        ("--keep-full", evil("(")),
        ("--allow", evil("Odd")),
        ("--list", PATH),
        ("--plan", PATH),
        ("--to", evil("half")),
        (evil("--flag"),),
        ("-\x1b[31m",),
        ("--dim", evil("n")),
        ("--tolerance", evil("relative_l2")),
        ("coverage", "--rules", f"max-casts={evil('1')}"),
        ("bench", "--budget", evil("1")),
        ("bench", "--data", PATH),
        ("verify", PATH),
        (PATH,),
    ],
    ids=ascii,
)
def test_every_command_prints_text_alone(model, arguments):
    """On a model all of whose names are commands, colours and line ends; and what is asked for as well."""
    command = arguments[:1] if arguments[0] in main.commands else ()
    printed = tame(run(*command, model, *arguments[len(command) :]))
    assert "\\" in printed, "the names are there, in escapes"


def test_every_command_that_runs_models_prints_text_alone(tmp_path):
    """Verification with its table and its blame, bench, a saved plan, and what explains itself."""
    pytest.importorskip("onnxruntime")
    model, plan, report = tmp_path / "runs.onnx", tmp_path / "plan.json", tmp_path / "report.json"
    model.write_bytes(hostile(is_run=True).SerializeToString())
    other = tmp_path / "\x1b[31mother\n::error::.onnx"
    tame(run(model, "-o", other, "--show=nodes", f"--save=plan={plan}", "--json", report))
    assert json.loads(report.read_text())["verification"]["outputs"][0]["name"] == evil("y")
    tame(run("explain", plan, "--show=all"))
    tame(run("bench", model, "--budget", "0"))
    forced, judged = tmp_path / "forced.onnx", ("--tolerance", "relative_l2=1e-9", "--show=nodes")
    assert "FAIL" in tame(run(model, "-o", forced, "--level", "unsafe-force-all", *judged))
    tame(run("verify", model, forced, *judged))
    tame(run("explain", forced, evil("h")))


def test_the_files_for_a_ci_hold_text_alone(model):
    """JUnit is XML that can be read, Markdown a page without lines of others', the HTML report one script."""
    folder = model.parent
    files = [folder / name for name in ("c.md", "c.xml", "c.json", "r.html")]
    page, suite, found, _ = files
    flags = ("--save", f"markdown={page}", "--save", f"junit={suite}", "--json", found)
    asked = ("--rules", "min-flops=1", "--rules", "forbid-half=Exp", "--rules", "require=Sqrt=1")
    tame(run("coverage", model, *asked, *flags))
    tame(run("--dry-run", model, "--html", files[3]))
    page, suite, _, report = (file.read_text(encoding="utf-8") for file in files)
    assert not FORBIDDEN.search(page + suite)
    assert not re.search(r"(?m)^\s*::", page + suite)
    failures = [failure.text for failure in ET.fromstring(suite).iter("failure")]
    assert any(visible(evil("long")) in failure for failure in failures)
    assert "<script>'" not in report
    assert page.count("```") == 2, "what is in a block of code is text"
    assert not re.search("[\x1b\u2028\u2029\u202e]", report)


def test_a_lone_surrogate_is_refused(model):
    """A plan is JSON, in which a name can be what no encoding has."""
    plan = model.with_name("plan.json")
    tame(run("--dry-run", model, f"--save=plan={plan}"))
    content = json.loads(plan.read_text())
    for row in content["decisions"]:
        row["node"] = "\udfff\ud800"
    plan.write_text(json.dumps(content))
    assert "surrogates not allowed" in tame(run("explain", plan, "--show=all"))
