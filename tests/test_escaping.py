"""Nothing that a model, a file or a command line says reaches a terminal or a log as more than text."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import onnx
import pytest

import amp_rewrite
from amp_rewrite.cli import main
from amp_rewrite.console import Console, Styled
from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.text import LONGEST_NAME, brief, shortened, visible
from tests import text
from tests.test_cli import run

PACKAGE = Path(amp_rewrite.__file__).parent
ROOT = PACKAGE.parent

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


# ---- one place


def calls(path):
    """What a module calls and imports, as it is written there."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


PRINTS = re.compile(r"rich(?!\.table\.Column)\b.*|click\.s?echo|print|.*std(out|err)\.write|warnings\.warn")
PLACES = {
    "console.py": "where everything is printed",
    "cli/progress.py": "a spinner with stages of ours",
    "cli/exit_codes.py": "the one line of an error",
    "cli/commands.py": "the version",
    "cli/flag_builders.py": "the help of a command",
    "process/startup.py": "that a package is missing, in words of ours and of Python",
}


def test_one_module_prints():
    """A print that forgets the escapes has no place to stand."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(map(PRINTS.fullmatch, calls(path)))
    }
    assert found == set(PLACES)


@pytest.fixture
def out(tmp_path):
    """A file that is printed to."""
    with (tmp_path / "out").open("w+", encoding="utf-8") as file:
        yield file


def lines(file):
    """What was printed, by lines."""
    file.seek(0)
    return file.read().split("\n")[:-1]


def test_a_line_is_a_line(out):
    """In whatever part a line end comes, and however long the line is."""
    words = "word " * 50 + "end"
    Console(file=out, width=20).print(Styled("a\nb", "bold"), "\x1b[1m\r", words)
    assert lines(out) == [r"a\nb\x1b[1m\r" + words]


def test_a_table_in_a_pipe_has_a_line_for_each_row(out):
    """Names are whole, where they are of any sensible length, and do not fold at 80 columns."""
    name = "/model/decoder/layers.0/self_attn/" * 4
    Console(file=out, width=80).table(("a", "b"), [(name, "x"), ("a\nb\t", "y"), ("n " * 5000, "z")])
    _, *rows = lines(out)
    assert [row.split()[-1] for row in rows] == ["x", "y", "z"]
    assert rows[0].startswith(name)
    assert rows[1].startswith(r"a\nb\t")
    assert all(len(row) < LONGEST_NAME + 5 for row in rows)


@pytest.mark.parametrize("columns", ["40", None])
def test_names_do_not_fold_when_piped(tmp_path, columns):
    """`--dry-run` and `verify` through a pipe print a line an entry, as wide as it is."""
    name = "a_long_name_of_a_value_" * 5
    path = tmp_path / "model.onnx"
    source = f"g (float[4,4] x) => (float[4,4] {name}) <float[4,4] w> {{ {name} = MatMul(x, w) }}"
    onnx.save(text.model(source), path)
    environment = {**os.environ, "FORCE_COLOR": "", **({"COLUMNS": columns} if columns else {})}
    command = [sys.executable, ROOT / "cli.py", "--dry-run", path]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert sum(name in line for line in printed.splitlines()) == printed.count("Cast ") - 1
    assert len(printed.splitlines()) == 6


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


def hostile(*, half=False):
    """A model in which every text that a model can hold is more than a name."""
    proto = text.unchecked("""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[n, 2] x) => (float[n, 2] y, u) <float[2, 2] w = {1, 0.3, 0.3, 1}> {
            h = MatMul (x, w)  e = Exp (h)  r = Sqrt (e)
            long = MatMul (r, w)  y = Add (long, h)  u = mine.Odd (y)
        }""")
    if half:
        proto = runnable(proto)
    return renamed(proto)


def runnable(proto):
    """The same without the operator that nobody knows."""
    del proto.graph.node[-1], proto.graph.output[-1]
    return proto


def renamed(proto):
    """The model with all its names as evil as can be."""
    graph = proto.graph
    for node in graph.node:
        node.name = evil(node.output[0])
        node.input[:] = map(evil, node.input)
        node.output[:] = map(evil, node.output)
        if node.domain:
            node.domain, node.op_type = evil("domain"), evil("Odd")
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = evil(value.name)
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = evil("n")
    for opset in proto.opset_import:
        opset.domain = evil("domain") if opset.domain else ""
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


@pytest.fixture
def running(tmp_path):
    """A hostile model that runs."""
    path = tmp_path / "runs.onnx"
    path.write_bytes(hostile(half=True).SerializeToString())
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
        (
            "coverage",
            "--report",
            "github",
            "--rules",
            "min-flops=1",
            "--rules",
            f"forbid-half={evil('Odd')}",
            "--rules",
            "require=Exp=1",
        ),
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
        ("bench", "--seconds", evil("1")),
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


@pytest.mark.parametrize("name", ["other", "verify"])
def test_every_command_that_runs_models_prints_text_alone(running, name):
    """Verification with its table and its blame, bench, a saved plan, and what explains itself."""
    pytest.importorskip("onnxruntime")
    folder = running.parent
    forced = folder / "forced.onnx"
    saved = ("--save-plan", folder / "plan.json", "--json", folder / "report.json")
    if name == "other":
        tame(run(running, "-o", folder / f"\x1b[31m{name}\n::error::.onnx", "--per-node", *saved))
        tame(run("explain", folder / "plan.json", "--show=all"))
        tame(run("bench", running, "--seconds", "0"))
        assert json.loads((folder / "report.json").read_text())["verification"]["outputs"][0]["name"] == evil(
            "y"
        )
        return
    flags = ("--level", "unsafe-force-all", "--tolerance", "relative_l2=1e-9", "--per-node")
    printed = tame(run(running, "-o", forced, *flags))
    assert "FAIL" in printed
    tame(run("verify", running, forced, *flags[2:]))
    tame(run("explain", forced, evil("h")))


def test_the_files_for_a_ci_hold_text_alone(model):
    """JUnit is XML that can be read, Markdown a page without lines of others', the HTML report one script."""
    folder = model.parent
    files = [folder / name for name in ("c.md", "c.xml", "c.json", "r.html")]
    page, suite, found, _ = files
    flags = ("--report", f"markdown={page}", "--report", f"junit={suite}", "--json", found)
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
    tame(run("--dry-run", model, "--save-plan", plan))
    content = json.loads(plan.read_text())
    for row in content["units"]:
        row["node"] = "\udfff\ud800"
    plan.write_text(json.dumps(content))
    assert "surrogates not allowed" in tame(run("explain", plan, "--show=all"))


# ---- what stands in other files

SECRET = "root:x:0:0:hunter2:/root:/bin/bash"
OTHERS = {
    "passwd": f"{SECRET}\n{SECRET}\n",
    "yaml": f"{SECRET}: 1\n{SECRET}: 2\n",
    "secrets.yaml": f"password: {SECRET}\npassword: {SECRET}\n",
    "tag.yaml": f"a: !{SECRET.replace(':', '')}!b c\n",
    "anchor.yaml": "a: &hunter2 b\nc: *hunter2\n",
    "list.yaml": f"- {SECRET}\n",
    "json": json.dumps({"format": SECRET, "units": [SECRET]}),
    "bad.json": f'{{"{SECRET}": ',
    "text.json": json.dumps(SECRET),
    "secret.npz": SECRET,
    "onnx": SECRET,
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "arguments",
    [
        ("{model}", "--list", "{file}"),
        ("{model}", "--list", "{extends}"),
        ("{model}", "--plan", "{file}"),
        ("{model}", "--data", "{file}"),
        ("coverage", "{model}", "--rules", "{file}"),
        ("coverage", "{model}", "--rules", "baseline={file}"),
        ("explain", "{file}"),
        ("{file}",),
    ],
    ids=" ".join,
)
def test_an_error_quotes_no_other_file(tmp_path, name, arguments):
    """A path may name any file: what stands in it is not for who reads the log."""
    file, extends, model = tmp_path / name, tmp_path / "extends", tmp_path / "model.onnx"
    file.write_text(OTHERS[name])
    extends.write_text(f"name: mine\nextends: {name}\n")
    onnx.save(text.model("g (float[4,4] x) => (float[4,4] y) { y = Relu(x) }"), model)
    given = [word.format(file=file, extends=extends, model=model) for word in arguments]
    result = run(*given)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert name in line
    assert "hunter2" not in line


# ---- folders

PLACES_OF_MODELS = [
    ("{}",),
    ("--in-place", "{}"),
    ("--dry-run", "{}"),
    ("--skip=verify", "{}", "-o", "out.onnx"),
    ("explain", "{}"),
    ("bench", "{}"),
    ("verify", "{}", "{}"),
]


@pytest.mark.parametrize("folder", [".", "..", "sub.onnx"])
@pytest.mark.parametrize("arguments", PLACES_OF_MODELS, ids=" ".join)
def test_a_folder_is_no_model(tmp_path, monkeypatch, folder, arguments):
    """Whatever is to be done with it, and however it is spelt."""
    (tmp_path / "sub.onnx").mkdir()
    monkeypatch.chdir(tmp_path)
    result = run(*(word.format(folder) for word in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"amp-rewrite: {folder}: is a folder; name the model in it")
    assert [path.name for path in tmp_path.iterdir()] == ["sub.onnx"]
