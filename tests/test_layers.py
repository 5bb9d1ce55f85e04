"""The source and its map: what imports what, changes a model and prints, as docs/design.md says."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "amp_rewrite"

# Each imports only from what stands before it: modules, and folders as wholes. It is the reading order, too.
ORDER = """
    text version errors process console arguments files
    numerics operators certificate onnx_types policy model
    preparing analysis bounds costs colouring rewriting rescaling explaining
    running placement coverage reporting
    pipeline training tuning conversion
    testing onnx_ir_pass demo options half compat many cli __init__ __main__
""".split()
ASKING = {
    "certificate/folding.py",
    "process/worker.py",
    "numerics/rounding.py",
}
"""What imports onnxruntime besides `running`, in functions."""

MODULES = sorted(PACKAGE.rglob("*.py"))


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


@functools.cache
def nodes_of(path):
    """The nodes of a module as it is parsed, once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def offending(problem, modules=MODULES):
    """What is wrong with modules, by their paths, as far as anything is."""
    found = {path.relative_to(PACKAGE).as_posix(): problem(path) for path in modules}
    return {name: wrong for name, wrong in found.items() if wrong}


def test_a_module_imports_only_from_above():
    """ORDER is the reading order of the package: nothing needs what comes later."""
    missing = {entry(path.relative_to(PACKAGE).with_suffix("").parts) for path in MODULES} - {*ORDER}
    assert not missing, f"give {missing} a place in ORDER, at the top of {Path(__file__).name}"
    assert offending(imported_from_below) == {}


def imported_from_below(path):
    """The entries that a module imports and may not; the demo stands alone, for the command line only."""
    here = entry(path.relative_to(PACKAGE).with_suffix("").parts)
    names = imported(nodes_of(path))
    used = {entry(name[1:]) for name in names if name[0] == "amp_rewrite"} - {here}
    above = set(ORDER[: ORDER.index(here)]) - (set() if here == "cli" else {"demo"})
    return sorted(used if here == "demo" else used - above)


def test_only_running_needs_onnxruntime():
    """The rewrite works without onnxruntime; only functions of two modules ask it for more."""
    assert offending(asks_onnxruntime) == {}


def asks_onnxruntime(path):
    """Whether a module imports onnxruntime where it may not."""
    if entry(path.relative_to(PACKAGE).with_suffix("").parts) == "running":
        return False
    lazy = set()
    if path.relative_to(PACKAGE).as_posix() in ASKING:
        functions = (node for node in nodes_of(path) if isinstance(node, ast.FunctionDef))
        lazy = {node for function in functions for node in ast.walk(function)}
    names = imported(node for node in nodes_of(path) if node not in lazy)
    return "onnxruntime" in {name[0] for name in names}


WITNESS = {"errors", "text", "process", "files", "numerics", "operators", "certificate"}
"""What the certificate may import: nothing of it analyses, plans or edits."""


def test_the_certificate_shares_nothing_with_what_it_judges():
    """The proof reads protobufs: no onnx-ir, and none of our code but files, errors, rounding and imports."""
    assert offending(shared_with_the_judged, (PACKAGE / "certificate").glob("*.py")) == {}


def shared_with_the_judged(path):
    """What a module of the certificate imports and may not."""
    names = list(imported(nodes_of(path)))
    ours = {entry(name[1:]) for name in names if name[0] == "amp_rewrite"}
    return sorted(ours - WITNESS) + ["onnx_ir" for name in names if name[0] == "onnx_ir"]


def test_contributing_names_who_imports_onnxruntime():
    """CONTRIBUTING.md names those that do, and no others."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    said = page.partition("Only `running/` imports onnxruntime")[2].partition("rewrite works without it")[0]
    assert set(re.findall(r"`(\S+\.py)`", said)) == ASKING
    for name in ASKING:
        assert ("onnxruntime",) in {each[:1] for each in imported(nodes_of(PACKAGE / name))}


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


def test_the_design_names_who_changes_a_model():
    """docs/design.md names each module that assigns to parts of a model, or calls what changes them."""
    said = section("What may change a model")
    inner = (path for path in MODULES if path.parent.name != "running")
    found = [path for path in inner if any(map(changes, nodes_of(path)))]
    assert set(re.findall(r"`(\w+\.\w+)`", said)) == {f"{path.parent.name}.{path.stem}" for path in found}


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


PRINTS = re.compile(r"rich(?!\.table\.Column)\b.*|click\.s?echo|print|.*std(out|err)\.write|warnings\.warn")
PRINTING = {
    "console.py": "where everything is printed",
    "compat.py": "that an argument has no effect",
    "cli/progress.py": "a bar with stages of ours",
    "cli/exit_codes.py": "the one line of an error",
    "cli/commands.py": "the version",
    "cli/flags.py": "the help of a command",
    "process/startup.py": "that a package is missing, in words of ours and of Python",
}


def test_one_module_prints():
    """A print that forgets the escapes has no place to stand."""
    assert set(offending(prints)) == set(PRINTING)


def prints(path):
    """Whether a module calls or imports what prints."""
    nodes = nodes_of(path)
    called = (ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call))
    names = (".".join(name) for name in imported(nodes))
    return any(map(PRINTS.fullmatch, (*called, *names)))


LONGEST = 500


def test_a_file_is_short():
    """A module is one subject."""
    assert offending(lambda path: len(path.read_text().splitlines()) > LONGEST) == {}


# ---- docs/design.md

PAGE = (ROOT / "docs" / "design.md").read_text()


def section(title):
    """The text below a headline of the page."""
    return next(text for text in PAGE.split("\n## ") if text.startswith(f"{title}\n"))


def is_module(name):
    """Whether a dotted name is a module or a folder of the package."""
    place = PACKAGE.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_the_rooms_are_the_folders_in_their_order():
    """Every folder has one line, in the order in which they import."""
    rows = re.findall(r"^\| `(\w+)` \|", section("The rooms"), flags=re.MULTILINE)
    assert rows == [name for name in ORDER if (PACKAGE / name).is_dir()]


def test_the_design_names_what_is_there():
    """Modules of the stages, and the files of tests."""
    lines = [line for line in section("The story, stage by stage").splitlines() if line.startswith("    ")]
    places = [place for line in lines for place in re.split("  +", line)[-1].split(", ")]
    assert len(places) >= 12
    assert [place for place in places if not is_module(place)] == []
    tests = re.findall(r"`(tests/[a-z_]+\.py)`", PAGE)
    assert [name for name in tests if not (ROOT / name).is_file()] == []
