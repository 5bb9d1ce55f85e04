"""The files and commands of transcripts."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from click.testing import CliRunner

import amp_rewrite
from amp_rewrite import demo, testing, training
from amp_rewrite.arguments import ExternalData
from amp_rewrite.cli import main
from amp_rewrite.coverage import coverage_rules
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.policy import operator_lists
from amp_rewrite.rewriting import plan_files
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.tolerances import Tolerances
from amp_rewrite.tuning.tune import tune
from tests import text, train_steps, tuning_models

NAMES = {
    "amp_rewrite": amp_rewrite,
    "demo": demo,
    "model": text.model,
    "np": np,
    "onnx": onnx,
    "text": text,
    "train_steps": train_steps,
    "tuning_models": tuning_models,
}
"""What expressions may name."""
CALLS = {
    **NAMES,
    **{name: getattr(amp_rewrite, name) for name in amp_rewrite.__all__},
    "Data": feeds.Data,
    "ExternalData": ExternalData,
    "IMAGE": demo.feeds()["image"],
    "MODEL": demo.network(),
    "ONNXProgram": type("ONNXProgram", (), {"model": None}),
    "Path": Path,
    "Tensor": type("Tensor", (), {}),
    "Tolerances": Tolerances,
    "assert_coverage": testing.assert_coverage,
    "coverage_rules": coverage_rules,
    "feeds": feeds.feeds,
    "ir": ir,
    "operator_lists": operator_lists,
    "plan_files": plan_files,
    "replace": replace,
    "training": training,
    "tune": tune,
}
"""What calls may name besides: the public names, and what they take."""


def write(name: str, body: str, folder: Path) -> None:
    """Writes a file: `NAME`, `NAME: TEXT`, `NAME = EXPRESSION`, each with `+ DATA` behind the name."""
    name, sign, inline = re.fullmatch(r"(.*?)(?:( = |: )(.*))?", name).groups("")
    expression, body = (inline, body) if sign == " = " else ("", inline or body)
    name, _, data = name.partition(" + ")
    if expression or name.endswith(".npz"):
        content = eval(f"{expression}\n{body}".strip(), dict(NAMES))
    else:
        content = text.unchecked(body) if name.endswith(".onnx") else f"{body}\n"
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, onnx.ModelProto):
        outside = {"save_as_external_data": True, "location": data, "size_threshold": 0} if data else {}
        onnx.save(content, place, **outside)
    elif isinstance(content, dict):
        np.savez(place, **content)
    else:
        place.write_bytes(content if isinstance(content, bytes) else content.encode())


@dataclass(frozen=True)
class Done:
    """What commands printed and answered; `error` is an exception that was not foreseen."""

    printed: str = ""
    code: int = 0
    error: str = ""
    is_refusal: bool = False

    @property
    def lines(self) -> list[str]:
        """Those that are not empty."""
        return [line.rstrip() for line in self.printed.splitlines() if line.strip()]


def run(line: str, folder: Path) -> Done:
    """What a line of commands does in a folder."""
    done = Done()
    for command in line.split(" && "):
        first, *pipes = command.split(" | ")
        found = _command(first, folder)
        printed = found.printed
        for pipe in pipes:
            printed = _shell(pipe, folder, printed).printed
        done = Done(done.printed + printed, found.code, done.error + found.error, found.is_refusal)
        if done.code:
            break
    return done


def _command(command: str, folder: Path) -> Done:
    how, _, code = command.partition(" ")
    if how in ("call", "do"):
        return _python(how, code, folder)
    name, *arguments = shlex.split(command)
    if name == "amp-rewrite":
        return _amp_rewrite(arguments, folder)
    if name not in COMMANDS:
        return _shell(command, folder)
    with contextlib.chdir(folder):
        try:
            return Done(COMMANDS[name](*arguments))
        except (OSError, LookupError, TypeError, ValueError) as error:
            return Done(f"{name}: {error!r}", 1)


def _python(how: str, code: str, folder: Path) -> Done:
    with contextlib.chdir(folder):
        try:
            if how == "call":
                return Done(f"{eval(code, dict(CALLS))}\n")
            exec(code, dict(CALLS))
            return Done()
        except AmpRewriteError as error:
            line = f"{type(error).__name__}: {error}"
            return Done(f"{line}\n", error="" if "\n" not in line and len(line) < 300 else "no single line")


def _shell(command: str, folder: Path, given: str = "") -> Done:
    done = subprocess.run(
        command, shell=True, cwd=folder, input=given, capture_output=True, text=True, check=False
    )
    return Done(done.stdout + done.stderr, done.returncode)


def _amp_rewrite(arguments: list[str], folder: Path) -> Done:
    channels = [word for word in arguments if word.endswith(">/dev/null")]
    before = _content(folder)
    with contextlib.chdir(folder):
        done = CliRunner().invoke(main, [word for word in arguments if word not in channels])
    shown = {"2>/dev/null": done.stdout, ">/dev/null": done.stderr}.get("".join(channels), done.output)
    is_error = done.exception and not isinstance(done.exception, SystemExit)
    error = "".join(traceback.format_exception(done.exception)) if is_error else ""
    is_refusal = not done.stdout and done.stderr.count("\n") == 1 and _content(folder) == before
    return Done(shown.replace(f"{folder}/", ""), done.exit_code, error, is_refusal)


def _content(folder: Path) -> list[tuple[Path, int, bytes]]:
    paths = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]
    paths = [path for path in paths if not (path / "__pycache__").is_dir()]  # which changes its time
    return [(path, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths]


def _list(pattern: str = "**/*") -> str:
    return " ".join(sorted(path.as_posix() for path in Path().glob(pattern) if not path.is_dir())) + "\n"


def page_data(path: Path) -> dict[str, Any]:
    """What the scripts of a page read, or a file of JSON."""
    written = path.read_text(encoding="utf-8")
    page = re.search(r'<script type="application/json" id="data">(.*?)</script>', written, re.DOTALL)
    return json.loads(page[1] if page else written)


def _json(path: str, *keys: str) -> str:
    content, told = page_data(Path(path)), []
    if not keys:
        return f"{json.dumps(content, ensure_ascii=False)}\n"
    for key in keys:
        found = content
        for part in re.split(r"\.(?=\w)", key):
            found = found[int(part) if isinstance(found, list) else part]
        told.append(f"{key}: {json.dumps(found, ensure_ascii=False)}\n")
    return "".join(told)


def _edit(path: str, place: str, value: str = "") -> str:
    content: Any = json.loads(Path(path).read_text())
    holder: Any = content
    *outer, key = (int(part) if part.isdigit() else part for part in place.split("."))
    for each in outer:
        holder = holder[each]
    if value:
        holder[key] = json.loads(value)
    else:
        del holder[key]
    Path(path).write_text(json.dumps(content))
    return ""


def _half(path: str) -> str:
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    nodes = (node for node in graph.node if node.op_type != "Cast" and types.get(node.output[0]) in (10, 16))
    return " ".join(node.name for node in nodes) + "\n"


def _nodes(path: str) -> str:
    return " ".join(node.op_type for node in onnx.load(path, load_external_data=False).graph.node) + "\n"


def _onnx(path: str) -> str:
    return text.printed(onnx.load(path))


COMMANDS = {
    "ls": _list,
    "json": _json,
    "edit": _edit,
    "half": _half,
    "nodes": _nodes,
    "onnx": _onnx,
}
"""`ls [PATTERN]`: files, in all folders; `json FILE KEY...`: values by keys with dots, or all, of pages too;
`edit FILE KEY [JSON]`: another value there, or none;
`call EXPRESSION`: what Python returns, or the error of ours that it raises, with its kind; `do STATEMENTS`;
`half MODEL`: names of nodes whose first output is half, no Casts; `nodes MODEL`: its operators; `onnx MODEL`:
as text.
"""
