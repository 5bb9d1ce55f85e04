import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "amp_rewrite"

# Each imports only from what stands before it: modules, and folders as wholes. It is the reading order, too.
ORDER = """
    escaping version errors console process slips arguments files
    numerics certificate onnx_types policy model flops
    preparing analysis bounds costs colouring rewriting explaining
    running placement coverage advice reporting
    argument_checks certified stages pipeline training restoring
    explanation_sources tuning rewrite_and_verify mending
    testing onnx_ir_pass demo options half zoo cli __init__ __main__
""".split()
ASKING = {
    "certificate/recomputing.py",
    "onnx_types/contrib_schemas.py",
    "onnx_types/worker_process.py",
    "numerics/rounding.py",
}
"""What imports onnxruntime besides `running`, in functions."""

MODULES = sorted(PACKAGE.rglob("*.py"))
each_module = pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))


def entry(parts):
    """The entry of ORDER that a path or dotted name belongs to; what is no module is __init__."""
    name = parts[0] if parts else "__init__"
    return name if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file() else "__init__"


def imported(nodes):
    """Every imported name, split at its dots; `from a import b` is a, b, as is import_module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from ((*node.module.split("."), alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node.func) == "import_module":
            yield tuple(ast.unparse(node.args[0]).strip("'\"").split("."))


def _called(function):
    """The name that a call ends in; nothing if it has none."""
    return getattr(function, "attr", getattr(function, "id", ""))


@each_module
def test_a_module_imports_only_from_above(path):
    """ORDER is the reading order of the package: nothing needs what comes later."""
    here = entry(path.relative_to(PACKAGE).with_suffix("").parts)
    assert here in ORDER, f"give {here} its place in ORDER, at the top of {Path(__file__).name}"
    names = imported(ast.walk(ast.parse(path.read_text())))
    used = {entry(name[1:]) for name in names if name[0] == "amp_rewrite"} - {here}
    below = used - set(ORDER[: ORDER.index(here)])
    assert not below, f"{here} imports {sorted(below)}, not above it in ORDER"
    assert not used or here != "demo", "the demo stands alone"
    assert "demo" not in used or here == "cli", "the demo is for the command line only"


@each_module
def test_only_running_needs_onnxruntime(path):
    """The rewrite works without onnxruntime; only functions of two modules ask it for more."""
    here = entry(path.relative_to(PACKAGE).with_suffix("").parts)
    tree = ast.parse(path.read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    lazy = {node for function in functions for node in ast.walk(function)}
    allowed = set(ast.walk(tree)) if here == "running" else set()
    allowed |= lazy if path.relative_to(PACKAGE).as_posix() in ASKING else set()
    names = imported(node for node in ast.walk(tree) if node not in allowed)
    assert "onnxruntime" not in {name[0] for name in names}


WITNESS = {"errors", "escaping", "process", "files", "numerics", "certificate"}
"""What the certificate may import: nothing of it analyses, plans or edits."""


@pytest.mark.parametrize("path", sorted((PACKAGE / "certificate").glob("*.py")), ids=lambda p: p.name)
def test_the_certificate_shares_nothing_with_what_it_judges(path):
    """The proof reads protobufs: no onnx-ir, and none of our code but files, errors, rounding and imports."""
    names = list(imported(ast.walk(ast.parse(path.read_text()))))
    assert {entry(name[1:]) for name in names if name[0] == "amp_rewrite"} <= WITNESS
    assert "onnx_ir" not in {name[0] for name in names}


def sentence(start, end):
    """What CONTRIBUTING.md says between two phrases."""
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    return text[text.index(start) : text.index(end)]


def test_contributing_names_who_imports_onnxruntime():
    """CONTRIBUTING.md names those that do, and no others."""
    said = sentence("Only `running/` imports onnxruntime", "so the rewrite works without it")
    assert set(re.findall(r"`(\S+\.py)`", said)) == ASKING
    assert {name for name in ASKING if "onnxruntime" in _imports(PACKAGE / name)} == ASKING


def _imports(path):
    return {name[0] for name in imported(ast.walk(ast.parse(path.read_text())))}


FIELDS = {"type", "shape", "name", "const_value"}
MAPS = {"attributes", "metadata_props", "initializers", "opset_imports", "functions"}
LISTS = {"inputs", "outputs"}
CHANGING = {
    "insert_before",
    "insert_after",
    "register_initializer",
    "replace_all_uses_with",
    "replace_input_with",
    "resize_inputs",
    "resize_outputs",
}
ON_HOLDERS = {"append", "clear", "extend", "insert", "pop", "remove", "sort", "update"}


def test_contributing_names_who_changes_a_model():
    """CONTRIBUTING.md names each module that assigns to parts of a model, or calls what changes them."""
    said = sentence("Only these change a model", "What `running/` and `flops/` change")
    inner = (path for path in MODULES if path.parent.name not in ("running", "flops"))
    found = {path.stem for path in inner if any(map(changes, ast.walk(ast.parse(path.read_text()))))}
    assert set(re.findall(r"`(\w+)`", said)) == found


def changes(node):
    """Whether a piece of code changes a node, a value, a graph or a model."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        return any(is_part(part) for target in node.targets for part in getattr(target, "elts", [target]))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    holder = node.func.value
    held = isinstance(holder, ast.Attribute) and holder.attr in MAPS | LISTS
    holds = ast.unparse(holder) == "graph" or held
    return node.func.attr in CHANGING or (holds and node.func.attr in ON_HOLDERS)


def is_part(target):
    """Whether what is assigned to, or deleted, is a part of something that is not `self`."""
    if isinstance(target, ast.Subscript):
        return isinstance(target.value, ast.Attribute) and target.value.attr in MAPS
    if not isinstance(target, ast.Attribute) or target.attr not in FIELDS:
        return False
    return ast.unparse(target.value) != "self"


LONGEST = 500


@each_module
def test_a_file_is_short(path):
    """One idea a file."""
    assert len(path.read_text().splitlines()) <= LONGEST
