"""Tables of the certificate's cases: originals as text, what a result changes of each, and the verdict.

    (float[2] x) => (float[2] y) { y = Exp (x) }
        itself           |                          | proved: 1 node
        another operator | Exp -> Neg               | not proved: not the same
        another model    | (double[2] x) => (y) { } | not proved

A paragraph begins with the text of an original; each row, four spaces further in, has a name, the changes
(`old -> new; old -> new`) or the whole text of a result, and the verdict. Changes of the original itself may
stand before those of the result. Lines that are further in continue the one above.
A text is a graph of opset 17; `11: (float[2] x) => ...` is one of opset 11, and one that begins with `<` has
a header of its own. The domains `d`, `other` and `my` are known to nobody. Cases that no text describes are
rows in Python: (original, result, verdict), where a result may be a function that changes a copy of the
original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper, parser

from amp_rewrite import certify
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.errors import ModelError

OPSET = re.compile(r"(\d+): ")
ROW = re.compile(r"^    (?=\S)", re.MULTILINE)
DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "other", "d", "my")

Text = str | onnx.ModelProto
Change = str | onnx.ModelProto | Callable[[onnx.ModelProto], object]
Row = tuple[Text, Change, str]


def rows(table: str, others: Mapping[str, Row] | None = None) -> pytest.MarkDecorator:
    """Parametrise a test by the rows of a table; ids are names and verdicts."""
    cases = [*written(table), *(others or {}).items()]
    return pytest.mark.parametrize("row", [pytest.param(row, id=f"{name}: {row[2]}") for name, row in cases])


def written(table: str) -> Iterator[tuple[str, Row]]:
    """Each row of a table by its name."""
    for paragraph in table.strip("\n").split("\n\n"):
        original, *lines = ROW.split(paragraph)
        for line in lines:
            name, *changes, change, verdict = (" ".join(cell.split()) for cell in line.split("|"))
            yield name, (edited(" ".join(original.split()), *changes), change, verdict)


def check(row: Row) -> None:
    """Assert that the certificate gives the verdict of a row."""
    text, change, verdict = row
    original, result = model(text), changed(text, change)
    kind, _, reason = verdict.partition(": ")
    if kind == "error":
        with pytest.raises(ModelError, match=reason):
            certify(original, result)
        return
    if kind == "proved":
        prove(original, result, reason)
        return
    assert certify(original, original).proved
    try:
        found = certify(original, result)
    except ModelError:
        assert kind == "not proved or an error"
        return
    assert not found.proved
    assert reason in str(found)


def prove(original: onnx.ModelProto, result: onnx.ModelProto, details: str) -> None:
    """Assert that a result is proved, with `4 nodes`, or with the licences `merged 1, folded 2`."""
    found = certify(original, result)
    assert found.proved, found
    if details.endswith("nodes"):
        assert f"{found.nodes} nodes" == details
    elif details:
        used = (each.rsplit(" ", 1) for each in details.split(", "))
        assert found.licences == {Licence(name): int(count) for name, count in used}


def model(text: Text) -> onnx.ModelProto:
    """The model of a text, which nobody checks."""
    if isinstance(text, onnx.ModelProto):
        return text
    if text.startswith("<"):
        return parser.parse_model(text)
    opset = OPSET.match(text)
    version, graph = (opset[1], text[opset.end() :]) if opset else (17, text)
    imports = ", ".join([f'"": {version}', *(f'"{domain}": 1' for domain in DOMAINS)])
    return parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> g {graph}")


def changed(text: Text, change: Change) -> onnx.ModelProto:
    """The result of a row."""
    if isinstance(change, str) and isinstance(text, str):
        return model(edited(text, change) if " ->" in change else change or text)
    if not callable(change):
        return model(change)
    result = onnx.ModelProto()
    result.CopyFrom(model(text))
    change(result)
    return result


def edited(text: str, *changes: str) -> str:
    """A text in which each old part is the new one."""
    for each in (each for change in changes if change for each in change.split("; ")):
        old, _, new = each.partition(" ->")
        assert old in text, f"{old!r} is not in the text"
        text = text.replace(old, new.strip())
    return text


def store(name: str, array: NDArray[np.generic]) -> Callable[[onnx.ModelProto], None]:
    """A change: an initializer has these numbers, or there is one more."""
    tensor = numpy_helper.from_array(array, name)

    def change(result: onnx.ModelProto) -> None:
        others = [each for each in result.graph.initializer if each.name != name]
        del result.graph.initializer[:]
        result.graph.initializer.extend([*others, tensor])

    return change


def move_to_file(tensor: TensorProto, **entries: str) -> None:
    """Let a tensor say that its data are in a file; `location` and `offset` are entries."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
