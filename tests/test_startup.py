"""How the command and the package start: what is not needed is not imported."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from onnx import load, save
from onnx.parser import parse_model

import amp_rewrite
from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from amp_rewrite.process import startup
from tests.commands import run
from tests.test_packaging import ROOT


def python(*arguments, check=True):
    """What a new interpreter with our checkout prints."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=check)


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("rewrte",)], ids=" ".join)
def test_what_needs_no_command_imports_none(arguments):
    """The version, the list of commands and a slip are there at once: nothing heavy is imported for them."""
    done = python("-X", "importtime", "-m", "amp_rewrite", *arguments, check=False)
    imported = set(re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "amp_rewrite.cli.commands" in imported
    assert not {"numpy", "onnx", "onnx_ir", "yaml", "rich"} & imported
    assert "did you mean rewrite?" in done.stderr or "rewrte" not in arguments


def test_a_command_imports_no_other():
    """A command that is called is imported alone, with what it needs."""
    script = "loaded(main.commands['verify']); print(*sys.modules)"
    done = python(
        "-c",
        f"import sys; from amp_rewrite.cli.commands import loaded, main; {script}",
    )
    imported = set(done.stdout.split())
    assert [name for name in main.commands if f"amp_rewrite.cli.{name}_command" in imported] == ["verify"]


@pytest.mark.parametrize("listed", main.commands.values(), ids=main.commands)
def test_the_list_of_commands_says_what_they_say(listed):
    """The list is there before the commands are: its words are those that their own help begins with."""
    assert listed.get_short_help_str(1000) == loaded(listed).get_short_help_str(1000)


def test_an_interrupt_of_the_imports_is_no_traceback():
    """Who interrupts the command before it has begun ends it, and no module in C gets an exception."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        python("-c", INTERRUPTED)
    found = caught.value
    assert (found.returncode, found.stderr, found.stdout) == (-signal.SIGINT, "", "")


INTERRUPTED = """
import importlib, os, signal
from amp_rewrite import __main__

def interrupted(name):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("this is in the middle of an import")

importlib.import_module = interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may ignore it
__main__.main()
"""


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_what_becomes_of_interrupts_later_is_not_ours(handler):
    """Once the imports are done, an interrupt is what it was before: nothing, for a job in the background."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        assert startup.load("amp_rewrite.cli").main is main
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_that_lacks_a_package_names_it():
    """What a command needs is looked for when it is called, and named as what the program itself needs."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        python("-c", LACKING)
    assert (caught.value.returncode, caught.value.stdout) == (2, "")
    assert caught.value.stderr.startswith("amp-rewrite: the package onnx-ir is missing; install")
    assert caught.value.stderr.count("\n") == 1


LACKING = """
import sys
sys.modules["onnx_ir"] = None
sys.argv = ["amp-rewrite", "rewrite", "model.onnx"]
from amp_rewrite.__main__ import main
main()
"""


def test_the_package_is_imported_at_once_and_its_parts_when_asked_for():
    """Every name that the package promises is there, and listed; importing it alone imports nothing else."""
    done = python("-c", "import sys, amp_rewrite; print('numpy' in sys.modules)")
    assert done.stdout == "False\n"
    for name in amp_rewrite.__all__:
        assert getattr(amp_rewrite, name).__module__.startswith("amp_rewrite.")
    assert set(amp_rewrite.__all__) <= set(dir(amp_rewrite))
    modules = {"compat", "errors", "half", "options", "training"}
    assert set(amp_rewrite._PLACES) - set(amp_rewrite.__all__) == {"__version__", *modules}


def test_a_name_that_the_package_lacks():
    """It is an AttributeError, as of any module."""
    with pytest.raises(AttributeError, match=r"^module 'amp_rewrite' has no attribute 'rewrites'$"):
        amp_rewrite.rewrites  # noqa: B018 - asking is the point


def test_errors_and_options_are_there_too():
    """Who imports the package alone gets at the modules that a caller needs beside its names."""
    script = (
        "import amp_rewrite as a; print(a.errors.ModelError('what'), a.options.Options(half=a.half.BFLOAT16))"
    )
    assert python("-c", script).stdout.startswith("what Options(half=Half(name='bfloat16'")


def test_an_import_that_fails_says_why():
    """A package that lacks what we need is named, as it would be without the waiting."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        python("-c", "import onnx_ir; del onnx_ir.LazyTensor\nfrom amp_rewrite import rewrite")
    last = caught.value.stderr.splitlines()[-1]
    assert last.startswith("ImportError: amp_rewrite.pipeline:rewrite cannot be imported: ")
    assert last.endswith("'onnx_ir' has no attribute 'LazyTensor'")


def test_a_type_checker_knows_which_names_there_are():
    """It would take any name for one of ours if it saw the function that makes them."""
    tree = ast.parse(Path(amp_rewrite.__file__).read_text())
    top = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert "__dir__" in top
    assert "__getattr__" not in top


STARTS = (("cli.py",), ("-m", "amp_rewrite"))


@pytest.mark.parametrize("start", STARTS, ids=" ".join)
@pytest.mark.parametrize("module", ["click", "yaml"])
def test_a_package_that_is_missing_is_named(start, module, tmp_path):
    """A bare clone, without what it needs, says what to install in one line, and ends with exit code 2."""
    found = ended(tmp_path, f"raise ModuleNotFoundError('gone', name={module!r})", start)
    name = {"yaml": "PyYAML"}.get(module, module)
    assert found == (
        2,
        f"amp-rewrite: the package {name} is missing; install what it needs with: pip install '.[cpu]'\n",
    )


@pytest.mark.parametrize("problem", ["raise ImportError('two\\nlines')", "1 / 0", "import amp_rewrite.gone"])
def test_a_package_that_is_broken_is_one_line(problem, tmp_path):
    """Whatever a package says when it is imported, it is no traceback."""
    code, said = ended(tmp_path, problem, STARTS[0])
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("amp-rewrite: a package that it needs cannot be imported (")
    assert said.endswith("pip install '.[cpu]'\n")


def ended(folder, text, start):
    """The exit code and standard error of the command where a package runs `text` when it is imported."""
    (folder / "click.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *start, "--version"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="the shell of this system closes nothing")
@pytest.mark.parametrize(
    ("streams", "code"),
    [
        ("own.onnx -q --skip=verify >&- 2>&- <&-", 0),
        ("explain own.onnx --show=all | true", 0),
        pytest.param("coverage own.onnx --rules min-nodes=1 | true", 1, marks=pytest.mark.slow),
    ],
)
def test_streams_that_are_closed_change_no_exit_code(tmp_path, streams, code):
    """Nobody reads, or a pipe ends early: what was asked for is done, and no file gets what is printed."""
    save(parse_model(OWN), tmp_path / "own.onnx")
    line = f"{sys.executable} {ROOT / 'cli.py'} {streams}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "fault of" in done.stderr) == (code, False), done.stderr
    if "-q" in streams:
        assert load(tmp_path / "own_fp16.onnx").graph.node


OWN = """<ir_version: 9, opset_import: ["": 17, "own": 1]> g (float[2,2] x) => (float[2,2] y) {
    a = MatMul (x, x) y = own.Op (a) }"""
"""A model that onnxruntime does not run."""

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
named (float[batch, 2] x) => (float[batch, 2] y) <float[2, 2] w = {1, 2, 3, 4}>
{ h = MatMul (x, w) y = Relu (h) }
"""
"""A model with a dimension that has a name."""


def test_a_rewrite_and_its_comparison_need_no_algebra(tmp_path):
    """The command does its job, verification included, and the modules that wait are never run."""
    save(parse_model(MODEL), tmp_path / "model.onnx")
    done = python("-X", "importtime", "-m", "amp_rewrite", tmp_path / "model.onnx")
    imported = set(re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE))
    assert {"onnx_ir._core", "amp_rewrite.pipeline"} <= imported
    assert not {"sympy.core", "onnx.reference.op_run", "re2._re2"} & imported
    assert (tmp_path / "model_fp16.onnx").is_file()


@pytest.mark.slow
def test_what_waits_is_there_when_it_is_asked_for():
    """onnx-ir calculates with dimensions as ever."""
    assert python("-c", WAITS).stdout == "False\n2*n\nTrue\n"


WAITS = """
import sys
from amp_rewrite.process import startup
onnx_ir = startup.load("onnx_ir")
print("sympy.core" in sys.modules)
print((onnx_ir.SymbolicDim("n") * 2).value)
print("sympy.core" in sys.modules)
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), {"plain,verify", "plain,own.onnx"}),
        (("ow",), {"plain,own.onnx"}),
        (("none",), {"file,none"}),
        (("own.onnx", "--keep-f"), {"plain,--keep-full"}),
        (("coverage", "--r"), {"plain,--rules"}),
    ],
    ids=["nothing", "a model", "no name", "a flag", "another command"],
)
def test_a_shell_completes_commands_flags_and_models(tmp_path, monkeypatch, words, offered):
    """The first argument may be a command or a model; a model's flags are those of rewrite."""
    (tmp_path / "own.onnx").touch()
    monkeypatch.chdir(tmp_path)
    environment = {
        "COMP_WORDS": " ".join(("amp-rewrite", *words)),
        "COMP_CWORD": str(len(words)),
        "_AMP_REWRITE_COMPLETE": "bash_complete",
    }
    done = CliRunner().invoke(main, (), prog_name="amp-rewrite", env=environment)
    found = set(done.stdout.split())
    assert offered <= found
    assert words == ("",) or found == offered


def test_the_list_of_commands_is_whole():
    """No line of it is cut short, and the main job comes first."""
    lines = python("-m", "amp_rewrite", "--help").stdout.splitlines()
    first, others = (lines.index(f"{title}:") for title in ("Commands", "Advanced"))
    listed = [line for line in (*lines[first + 1 : others], *lines[others + 1 :]) if line]
    assert [line.split()[0] for line in listed] == list(main.commands)
    assert (listed[0].split()[0], others - first) == ("rewrite", 6)
    assert not [line for line in listed if line.endswith("...")]


def flags_in(help_text):
    """The flags that a help lists."""
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", help_text, re.MULTILINE))


def test_help_lists_the_common_flags_and_help_all_the_rest():
    """The common ones of `rewrite`; all in the other, which says that it is there."""
    common, everything = (run("rewrite", flag).stdout for flag in ("--help", "--help-all"))
    declared = {name for each in loaded(main.commands["rewrite"]).params for name in each.opts}
    assert "--help-all" in flags_in(common) < flags_in(everything)
    assert {name for name in declared if name.startswith("--")} <= flags_in(everything)


MANY_FLAGS = ("rewrite", "explain", "tune", "train")
HELPS = [*((name, "--help") for name in main.commands), *((name, "--help-all") for name in MANY_FLAGS)]


@pytest.mark.parametrize(("name", "flag"), HELPS)
def test_help_lists_options_alone(name, flag):
    """An argument has no words of its own there, and no option a type of Python's."""
    shown = run(name, flag).stdout.splitlines()
    rows = [line for line in shown[2:] if line.startswith("  ") and not line.startswith("   ")]
    assert not [line for line in rows if re.fullmatch(r"  \[?[A-Z. \[\]]+", line)]
    assert not [line for line in shown if "INTEGER" in line or "FLOAT" in line]
