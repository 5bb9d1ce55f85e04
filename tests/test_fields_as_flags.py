"""The library speaks of fields, the command line of flags."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite import demo, errors, training
from amp_rewrite.cli.fields_as_flags import flags, in_flags
from amp_rewrite.coverage import coverage_rules
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.options import ExternalData, Options, Pins
from amp_rewrite.rewriting import plan_files
from amp_rewrite.running.inputs.feeds import Data
from tests.commands import run

PACKAGE = Path(amp_rewrite.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z]|(?<![\w-])-o\b")

# What the command line prints under a result: suggestions of flags, by nature.
SUGGESTS = {
    "explaining/suggestions.py",
    "explaining/causes.py",
    "explaining/sentences.py",
    "reporting/terminal.py",
    "reporting/verdict_text.py",
    "running/verdict.py",
    "coverage/advice.py",
    "coverage/counts.py",
}
CORE = ("analysis", "colouring", "model", "numerics", "onnx_types", "policy", "rewriting")
LIBRARY = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in ("cli", "many.py")  # which runs the command
    and path.relative_to(PACKAGE).as_posix() not in SUGGESTS
]


def without_declared_flags(tree):
    """A module without the table of options that names their flags."""
    tree.body = [node for node in tree.body if getattr(getattr(node, "target", None), "id", "") != "DECLARED"]
    return tree


def texts(path):
    """The string constants of a module that are no documentation, nor the declaration of the flags."""
    tree = without_declared_flags(ast.parse(path.read_text()))
    documents = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in documents)
    return [node.value for node in constants if isinstance(node.value, str)]


def test_the_library_names_no_flag():
    """A message of the library can be read by who called it from Python; in the core no text begins so."""
    found = {path: [text for text in texts(path) if FLAG.search(text)] for path in LIBRARY}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}
    core = [
        path for path in LIBRARY if path.relative_to(PACKAGE).parts[0] in CORE and path.name != "reasons.py"
    ]
    assert [text for path in core for text in texts(path) if text.startswith("--")] == []


def test_every_flag_stands_for_a_field_that_is_there():
    """What the table names are fields of a dataclass, arguments of the API, or functions."""
    classes = {"Options": Options, "Pins": Pins, "Data": Data, "ExternalData": ExternalData}
    calls = (amp_rewrite.rewrite, amp_rewrite.verify, amp_rewrite.measure_coverage)
    calls = (*calls, training.rewrite_train_step, training.find_spec)
    known = {name for call in calls for name in inspect.signature(call).parameters}
    known |= {
        f"{owner}.{field.name}" for owner, kind in classes.items() for field in dataclasses.fields(kind)
    }
    known |= {
        f"{module.__name__.split('.')[-1]}.{name}"
        for module in (plan_files, coverage_rules, training)
        for name in dir(module)
    }
    known |= {f"OpLists.override({kind.value})" for kind in Kind}
    known |= {
        f"{kind.__name__}.{name}"
        for kind in (amp_rewrite.Observed, amp_rewrite.Analysis)
        for name in dir(kind)
    }
    assert [name for name in flags() if name.split("=")[0] not in known] == []


def test_every_field_in_a_message_has_a_flag():
    """What is in backticks in a message is a field with a flag, or the command itself."""
    quoted = [word for path in LIBRARY for text in texts(path) for word in re.findall("`([^`{}]+)`", text)]
    assert len(set(quoted)) > 5
    assert {word for word in quoted if word not in flags() and not word.startswith("amp-rewrite ")} == set()


def test_fields_become_flags_and_all_else_stays():
    """Only what is in backticks and in the table is another text on the command line."""
    error = errors.OptionError("m.onnx is the input", remedy="choose another, or say `in_place=True`")
    assert in_flags(error) == "m.onnx is the input; choose another, or say --in-place"
    assert in_flags("see `amp-rewrite explain`, in_place=True") == "see `amp-rewrite explain`, in_place=True"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model in it, to stand in."""
    onnx.save(demo.network(), tmp_path / "m.onnx")
    np.savez(tmp_path / "wrong.npz", image=np.zeros((1, 3, 1, 1), np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("m.onnx -o m.onnx", "m.onnx is the input itself; choose another place, or use --in-place"),
        (
            "m.onnx --keep-full nothing_like_it",
            "--keep-full nothing_like_it matches no node that computes in",
        ),
        ("m.onnx --force-half (", "--force-half ( is not a valid regular expression"),
        ("m.onnx --plan wrong.npz", "make it again with --save-plan"),
        ("coverage m.onnx --rules baseline=none.json", "write it with --report baseline=FILE"),
        ("m.onnx --dim batch=999999999999999", "give smaller sizes with --dim"),
    ],
)
def test_the_command_line_names_flags(folder, flags, said):
    """Each error on the command line has the flag that helps, and no field."""
    done = run(*flags.split())
    assert done.exit_code == 2
    assert said in done.output
    assert "`" not in done.output.replace("`amp-rewrite explain`", "")
    assert not (folder / "m_fp16.onnx").exists()


def test_a_model_that_is_not_compared_names_flags(folder):
    """Why there is no verdict is said in flags as well."""
    pytest.importorskip("onnxruntime")
    proto = demo.network()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, folder / "m.onnx")
    done = run("m.onnx", "--json", "report.json")
    for said in (done.output, (folder / "report.json").read_text()):
        assert "with --data FILE.npz" in said
        assert "`" not in said
