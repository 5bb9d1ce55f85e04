"""The files that a command will read and write, as far as its arguments and the files they name tell."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from amp_rewrite.coverage import rule_files
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.model import obsolete_data_files, output_paths
from amp_rewrite.numerics import half
from amp_rewrite.policy import operator_lists
from amp_rewrite.reporting.html_report import PICTURES


class WrittenFile(click.Path):
    """The type of a flag that names a file to write: `Path` would take `folder/` for a file of that name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; raises OptionError for what names standard output, a folder, or nothing."""
        problem = _NO_FILE_NAMES.get(str(value)) or ("is a folder's name" if str(value).endswith("/") else "")
        if problem:
            by = max(param.opts, key=len) if param is not None else "the output"
            raise OptionError(f"{by} {value}".strip() + f" {problem}", remedy="name a file")
        return super().convert(value, param, ctx)


_NO_FILE_NAMES = {"": "names nothing", "-": "is no file: nothing is written to standard output"}


WRITTEN = WrittenFile(path_type=Path)


@dataclass(frozen=True, slots=True)
class Touched:
    """A path, and by whom it is named: a flag, an argument, or a file that one of them names."""

    by: str
    path: Path
    is_model: bool = False


RESULT = "the result"
OUTPUT = "--output"
MODEL = "MODEL"


def read(params: Sequence[click.Parameter], values: Mapping[str, Any]) -> Iterator[Touched]:
    """What the command reads: files that its arguments name, and files that these name."""
    for file in _paths(params, values, written=False):
        yield file
        yield from _behind(file)
    for name in filter(None, (values.get("list_"),)):
        with contextlib.suppress(AmpRewriteError):  # it is told when the list is needed
            yield from (Touched("--list", path) for path in operator_lists.load(name).files)


def written(params: Sequence[click.Parameter], values: Mapping[str, Any]) -> Iterator[Touched]:
    """What the command writes, its default names included; of plots, all that there can be."""
    yield from _paths(params, values, written=True)
    if values.get("update"):
        yield from (Touched("--baseline", path) for path in _baselines(values))
    if values.get("plots"):
        places = (values["plots"] / f"{name}{kind}" for name in PICTURES for kind in (".svg", ".png"))
        yield from (Touched("--plots", place) for place in places)
    if _takes_default_name(values):
        names = (output_paths.default(values["model"], to) for to in half.BY_NAME.values())
        yield from (Touched(RESULT, name) for name in names)


def _takes_default_name(values: Mapping[str, Any]) -> bool:
    """Whether it is a rewrite whose result is named after its model, which is there and has a name."""
    named = values.get("output") or values.get("in_place") or values.get("dry_run")
    if "in_place" not in values or named:
        return False
    model: Path = values["model"]
    return bool(model.name) and os.path.exists(model)  # noqa: PTH110 - False for what no file can be called


def _paths(
    params: Sequence[click.Parameter], values: Mapping[str, Any], *, written: bool
) -> Iterator[Touched]:
    for param in params:
        value = values.get(param.name or "")
        is_updated = param.name == "baseline" and values.get("update")
        if isinstance(param.type, WrittenFile) != written or param.name == "plots" or is_updated:
            continue
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path):
                yield Touched(_spelling(param), path, is_model=isinstance(param, click.Argument))


def _spelling(param: click.Parameter) -> str:
    if isinstance(param, click.Argument):
        return (param.name or "").upper()
    return max(param.opts, key=len)


def _behind(file: Touched) -> Iterator[Touched]:
    """The files that one that is read leads to: in a folder, the weights of a model, a baseline of rules."""
    if file.path.is_dir():
        inside = (*file.path.glob("*"), *file.path.glob("*/*"))
        yield from (Touched(file.by, path) for path in inside)
    elif file.by == "--rules":
        yield from (Touched(file.by, path) for path in _baselines({"file": file.path}))
    elif file.is_model:
        yield from weights(file)


def weights(model: Touched) -> Iterable[Touched]:
    """The files in which a model, if it is one, keeps weights."""
    return (
        Touched(f"the weights of {model.by}", path) for path in obsolete_data_files.referenced_by(model.path)
    )


def _baselines(values: Mapping[str, Any]) -> Iterator[Path]:
    if values.get("baseline"):
        yield values["baseline"]
    elif values.get("file"):
        with contextlib.suppress(AmpRewriteError):  # as above
            held = rule_files.load(values["file"]).baseline
            yield from (held,) if held else ()
