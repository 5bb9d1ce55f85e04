"""The models of a zoo: those in a folder, or those that a manifest names.

models:
  bert: bert/model.onnx         # relative to the manifest
  resnet50:
    model: resnet50.onnx
    data: resnet50.npz          # one path or a list, as for --data
    flags: [--to, bfloat16]     # of amp-rewrite MODEL
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml

from amp_rewrite.errors import ModelError
from amp_rewrite.files import staging
from amp_rewrite.policy import yaml_fields
from amp_rewrite.policy.yaml_fields import Field


@dataclass(frozen=True, slots=True)
class Entry:
    """A model, its name, and its own flags."""

    name: str
    model: Path
    flags: tuple[str, ...] = ()


def find(source: Path, results: Path) -> list[Entry]:
    """Return the models of a folder, recursively but without the folder of results, or those of a manifest.

    Raises ModelError without any model, or for a folder inside that of the results, and ListError for an
    invalid manifest.
    """
    if not source.exists():
        raise ModelError("there is no such folder or manifest", where=source, remedy="check the path")
    if source.suffix.lower() == ".onnx" and not source.is_dir():
        remedy = "give the folder that it is in, or rewrite it alone: amp-rewrite MODEL"
        raise ModelError("is a model, not a folder of models or a manifest", where=source, remedy=remedy)
    if source.is_dir():
        if source.resolve().is_relative_to(results.resolve()):
            raise ModelError("is in the folder of the results", where=source, remedy=_ELSEWHERE)
        models = models_in(source, results)
        entries = [Entry(model.relative_to(source).with_suffix("").as_posix(), model) for model in models]
    else:
        entries = list(_in_manifest(source))
    if not entries:
        raise ModelError("has no model", where=source, remedy="give a folder of .onnx files, or a manifest")
    return entries


def models_in(folder: Path, results: Path | None) -> list[Path]:
    """Return the .onnx files of a folder, recursively, but not those of results, nor unfinished ones."""
    own = results.resolve() if results is not None else None
    models = (path for path in sorted(folder.rglob("*.onnx")) if not path.is_dir())
    return [
        path
        for path in models
        if own not in path.resolve().parents and not path.parent.name.endswith(staging.UNFINISHED)
    ]


def data_beside(model: Path) -> Path | None:
    """Return the input file beside a model, m.npz for m.onnx; None if there is none."""
    data = model.parent / f"{model.stem}.npz"
    return data if data.is_file() else None


def _in_manifest(file: Path) -> Iterator[Entry]:
    top = yaml_fields.fields(file, yaml_fields.parse(file, ("models",), trusted=False), ("models",))
    names: dict[str, int] = {}
    for section in top:
        if not isinstance(section.value, yaml.MappingNode):
            raise section.error("models is not a mapping", "write it as in models: {bert: bert.onnx}")
        for field in yaml_fields.fields(file, section.value):
            if names.setdefault(field.name.casefold(), field.line) != field.line:
                raise field.error(f"{field.name} names the results of another model", "choose another name")
            yield _entry(field)


def _entry(field: Field) -> Entry:
    """Parse an entry, whose name must be a relative path inside the folder of results."""
    parts = PurePosixPath(field.name).parts
    if field.name != "/".join(parts) or ".." in parts or "\\" in field.name or field.name.startswith("/"):
        raise field.error(f"{field.name} is not a name", "write it as in bert, or text/bert")
    if yaml_fields.is_text(field.value):
        return Entry(field.name, field.file.parent / field.value.value)
    if not isinstance(field.value, yaml.MappingNode):
        raise field.error(f"{field.name} has no model", "write it as in bert: bert.onnx")
    values = {each.name: each for each in yaml_fields.fields(field.file, field.value, _KEYS)}
    if "model" not in values:
        raise field.error(f"{field.name} has no model", "add model: FILE")
    data = [str(field.file.parent / path) for path in _texts(values.get("data"))]
    flags = [part for path in data for part in ("--data", path)]
    model = field.file.parent / yaml_fields.text(values["model"])
    return Entry(field.name, model, (*flags, *_texts(values.get("flags"))))


_KEYS = ("model", "data", "flags")


def _texts(field: Field | None) -> list[str]:
    """Return the words of a field: one, or a list."""
    if field is None:
        return []
    nodes = field.value.value if isinstance(field.value, yaml.SequenceNode) else [field.value]
    return [_word(field, node) for node in nodes]


def _word(field: Field, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        remedy = f"write {field.name}: [a, b]"
        raise field.error(f"{field.name} is neither a word nor a list of words", remedy)
    return str(node.value)


def refuse_overwriting(entries: Sequence[Entry], results: Path) -> None:
    """Raise ModelError for a model that lies in the folder of results."""
    own = results.resolve()
    for entry in entries:
        if own in entry.model.resolve().parents:
            problem = "lies in the folder of the results"
            raise ModelError(problem, where=entry.model, remedy=_ELSEWHERE)


_ELSEWHERE = "choose another folder with -o"
