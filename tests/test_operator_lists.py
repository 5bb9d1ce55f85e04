import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from amp_rewrite.errors import ListError
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.operator_lists import Kind

LONGEST_REASON = 90  # one line of `explain`


def _listed(text: str, source: str) -> Evidence:
    return Evidence(Authority.LIST, Reason.LISTED, subject=source, text=text)


def _written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _refusal(path: Path) -> str:
    with pytest.raises(ListError) as caught:
        operator_lists.load(path)
    return str(caught.value).replace(f"{path.parent}/", "")


# ---- the shipped lists


def test_shipped_names() -> None:
    """Three lists are shipped; each has its file's name, a description, the half type that it is for, and is
    loaded once, so that nobody can write into it.
    """
    halves = {"bfloat16": "bfloat16", "default": "float16", "tensorflow": "float16"}
    assert {name: operator_lists.load(name).half for name in operator_lists.names()} == halves
    for name in operator_lists.names():
        found = operator_lists.load(name)
        assert (found.name, bool(found.description)) == (name, True)
        assert found is operator_lists.load(name)
        with pytest.raises(TypeError):
            found.entries[("", "Exp")] = None  # type: ignore[index]


@pytest.mark.parametrize("name", ["default", "bfloat16"])
def test_every_operator_is_listed(name: str) -> None:
    """Every operator of ONNX, of any version, and each that onnxruntime knows, if it may carry a float."""
    found = operator_lists.load(name)
    of_onnx = {("", s.name) for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    of_onnxruntime = {(s.domain, s.name) for s in _onnxruntime_schemas() if _has_float(s)}
    assert (len(of_onnx) > 150, len(of_onnxruntime) > 250) == (True, True)
    assert sorted(key for key in of_onnx | of_onnxruntime if not found.find(*key)) == []


def _onnxruntime_schemas() -> list:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = state.get_all_operator_schema()
    return [s for s in schemas if s.domain in ("", "com.microsoft")]


def _has_float(operator) -> bool:
    allowed = {c.type_param_str: c.allowed_type_strs for c in operator.type_constraints}
    ports = [*operator.inputs, *operator.outputs]
    types = [t for port in ports for t in allowed.get(port.typeStr, [port.typeStr])]
    return any("tensor(float)" in t for t in types)  # in a sequence or an optional, too


@pytest.mark.parametrize("name", operator_lists.names())
def test_operators_exist_and_reasons_are_short(name: str) -> None:
    """In onnx or in onnxruntime's schemas; a reason fits on a line of a report, and has no full stop."""
    for (domain, op_type), entry in operator_lists.load(name).entries.items():
        assert op_type in {*schema.known_operators(domain), "Mul(x,x)"}, op_type
        assert len(entry.evidence.text) <= LONGEST_REASON, op_type
        assert not entry.evidence.text.endswith("."), op_type


def test_bfloat16_inherits_no_float16_figure() -> None:
    """A reason that quotes a figure of float16 is written anew; 0, 1, 2 and bits are neutral."""
    figure = re.compile(r"(?<![\w.-])(?:[3-9]|\d{2,}|\d+\.\d+|\d+e-?\d+)(?![\w-]| bits)")
    inherited = [
        f"{operator}: {entry.evidence.text}"
        for operator, entry in operator_lists.load("bfloat16").entries.items()
        if entry.evidence.subject == "default" and figure.search(entry.evidence.text)
    ]
    assert inherited == []


# ---- reading a file


def test_a_list_is_read(tmp_path: Path) -> None:
    """Both forms of an entry are read, sections may be empty, the file names the list."""
    text = """
        description: two operators
        allow:
          MatMul: tensor
            cores
        infer:
          ai.onnx:Add: {reason: one rounding, follow: yes}
          com.microsoft:BiasGelu: {reason: fused}
          my.domain:Anything: ours
        deny:
    """
    found = operator_lists.load(_written(tmp_path, text))
    assert (found.name, found.description) == ("mine", "two operators")
    assert found.entries == {
        ("", "MatMul"): operator_lists.Entry(Kind.ALLOW, _listed("tensor cores", "mine")),
        ("", "Add"): operator_lists.Entry(Kind.INFER, _listed("one rounding", "mine"), follow=True),
        ("com.microsoft", "BiasGelu"): operator_lists.Entry(Kind.INFER, _listed("fused", "mine")),
        ("my.domain", "Anything"): operator_lists.Entry(Kind.INFER, _listed("ours", "mine")),
    }


def test_the_default_domain_has_two_names() -> None:
    """`ai.onnx` and the empty domain are one; an operator of another domain is another operator."""
    found = operator_lists.load("default")
    assert found.find("ai.onnx", "MatMul") is found.find("", "MatMul") is not None
    assert found.find("com.example", "MatMul") is None


def test_an_extending_list_says_what_differs(tmp_path: Path) -> None:
    """An operator that is named leaves the base's list; the others stay, and keep their source. A path is
    relative to the file that extends, and what the neighbour extends comes along.
    """
    (tmp_path / "sub").mkdir()
    _written(tmp_path, "extends: default\ndeny:\n  Relu: never\n", "base.yaml")
    found = operator_lists.load(_written(tmp_path / "sub", "extends: ../base.yaml\nclear:\n  Exp: why not\n"))
    base = operator_lists.load("default")
    kinds = [found.entries["", op].kind for op in ("Relu", "Exp", "MatMul")]
    assert kinds == [Kind.DENY, Kind.CLEAR, Kind.ALLOW]
    assert found.find("", "Exp") == operator_lists.Entry(Kind.CLEAR, _listed("why not", "mine"))
    assert found.find("", "Pow") == base.find("", "Pow")
    assert found.entries.keys() == base.entries.keys()
    assert base.entries["", "Exp"].kind is Kind.DENY


FILES = [
    # lists that extend each other are told as the circle they are
    (
        {"mine.yaml": "extends: other.yaml", "other.yaml": "extends: mine.yaml"},
        "other.yaml:1: the list extends itself: mine.yaml -> other.yaml -> mine.yaml",
    ),
    # what is wrong in an extended file is told with that file's name
    (
        {"mine.yaml": "extends: base.yaml", "base.yaml": "allow:\n  Exp:\n"},
        "base.yaml:2: Exp gives no reason",
    ),
    ({}, "mine.yaml: there is no such list; it can be bfloat16, default"),
    ({"mine.yaml": b"name: \xff"}, "mine.yaml: is not UTF-8 text; save it as UTF-8"),
    ({"mine.yaml/in": ""}, "mine.yaml: is a folder, not a file; name a file in it"),
]


@pytest.mark.parametrize(("files", "message"), FILES, ids=[message for _, message in FILES])
def test_a_list_of_several_files_or_of_none(
    tmp_path: Path, files: dict[str, str | bytes], message: str
) -> None:
    """An error names its file, and has it as a field, with its line."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    assert _refusal(tmp_path / "mine.yaml").startswith(message)
    with pytest.raises(ListError) as caught:
        operator_lists.load(tmp_path / "mine.yaml")
    file, line = re.match(r"([a-z.]+):(\d*)", message).groups()
    assert (caught.value.file, caught.value.line) == (str(tmp_path / file), int(line or 0))


# ---- the user's flags


def test_override_moves_operators() -> None:
    """Named operators move, others and the original stay; the entry says that a user asked. What follows does
    so on infer alone, and a misspelt operator is refused by the name of the list.
    """
    base = operator_lists.load("default")
    moved = ["Exp", "com.microsoft:BiasGelu", "my:Own", "Add", "Softmax"]
    asked = Evidence(Authority.OVERRIDE, Reason.ASKED)
    for kind in (Kind.ALLOW, Kind.INFER, Kind.DENY):
        found = base.override(kind, moved)
        for operator in moved:
            follows = kind is Kind.INFER and operator.endswith(("Add", "Gelu"))
            domain, _, name = operator.rpartition(":")
            assert found.entries[domain, name] == operator_lists.Entry(kind, asked, follows), operator
        assert found.find("", "Pow") is base.find("", "Pow")
    assert base.entries["", "Exp"].kind is Kind.DENY
    assert base.find("my", "Own") is None
    with pytest.raises(ListError) as caught:
        base.override(Kind.DENY, ["Softmx"])
    assert str(caught.value) == "`OpLists.override(deny)`: there is no operator Softmx; did you mean Softmax?"


# ---- an older onnx


OLDER = """
from amp_rewrite.onnx_types import schema
schema.known_operators = lambda _: frozenset({"MatMul"})
from amp_rewrite.policy import operator_lists
found = operator_lists.load("default").override(operator_lists.Kind.FIXED, ["LinearAttention"])
print(found.entries["", "LinearAttention"].kind.name)
"""


def test_shipped_lists_load_with_an_older_onnx() -> None:
    """A shipped list may name operators that the installed onnx is too old for; so may a user."""
    done = subprocess.run([sys.executable, "-c", OLDER], check=True, capture_output=True, text=True)
    assert done.stdout == "FIXED\n"


# ---- the half type that a list is for


def test_the_half_type_of_a_list(tmp_path: Path) -> None:
    """It is what the file says, else that of what it extends, else none; overrides keep it."""
    assert operator_lists.load("bfloat16").override("deny", "Conv").half == "bfloat16"
    assert operator_lists.load(_written(tmp_path, "extends: default")).half == "float16"
    assert operator_lists.load(_written(tmp_path, "extends: default\nhalf: bfloat16")).half == "bfloat16"
    assert operator_lists.load(_written(tmp_path, "deny: {Exp: large}")).half == ""
