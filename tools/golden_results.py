"""What goldens.py records of one model, in a process of its own: what a commit makes of it.

python tools/golden_results.py results|verdicts MODEL SETTINGS FOLDER SHARED CHECKOUT
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from click.testing import CliRunner
from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

Record = dict[str, Any]

SETTINGS: dict[str, tuple[Record, list[str]]] = {
    "float16": ({}, []),
    "bfloat16": ({"half": "bfloat16"}, ["--to", "bfloat16"]),
    "tensorrt": ({"target": "tensorrt"}, ["--target", "tensorrt"]),
    "half-io": ({"io": "half"}, ["--io", "half"]),
    "force-all": ({"level": "unsafe-force-all"}, ["--level", "unsafe-force-all"]),
    "storage-only": ({"storage_only": True}, ["--level=storage-only"]),
    "observed": ({}, ["--calibrate", "observed.json"]),
}
"""Options of `rewrite`, and the flags of `explain` for them; "observed" gets the ranges of a float32 run."""
MODES = {"results": list(SETTINGS), "verdicts": ["synthetic", "data"]}
SECONDS = {"results": 60, "verdicts": 300}
"""The limit for one result, of which an idle core needs a tenth."""
HASHES = ("graph", "types", "values")


def entries(shared: Path) -> dict[str, Record]:
    """What the index says of its models, and the same of the others, by name."""
    models, cases = shared / "models", sorted((shared / "cases").glob("*.onnx"))
    files = [path.relative_to(models).as_posix() for path in sorted(models.glob("overflow/*/model.onnx"))]
    listed = json.loads((models / "index.json").read_text())
    listed += [{"name": str(Path(file).parent), "file": file, "feeds": "inputs.npz"} for file in files]
    listed += [{"name": f"cases/{path.stem}", "file": str(path), "feeds": "beside"} for path in cases]
    return {each["name"]: each | {"path": models / each["file"]} for each in listed}


def main(mode: str, name: str, settings: str, folder: str, shared: str, checkout: str) -> None:
    """Write the results of one model. A signal ends the process where one of them takes too long."""
    package = Path(import_module("amp_rewrite").__file__ or "")
    if not package.is_relative_to(checkout):
        raise SystemExit(f"{package} is not in {checkout}")
    onnxruntime.SessionOptions = _OneThread
    sys.path.append(f"{shared}/tools")
    entry = entries(Path(shared))[name]
    for setting in settings.split(","):
        signal.alarm(SECONDS[mode])
        try:
            record = (verdict if mode == "verdicts" else result)(entry, setting)
        except Exception as error:
            record = _failure(error)
        text = json.dumps(record, indent=1, ensure_ascii=False)
        text = text.replace(str(entry["path"]), name).replace(str(Path.cwd()), "TEMPORARY")
        Path(folder, f"{setting}.json").write_text(text)


class _OneThread(onnxruntime.SessionOptions):
    """Session options: the last bits can depend on the number of threads."""

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 1


def _failure(error: Exception) -> Record:
    return {"failure": f"{type(error).__name__}: {error}"}


def inputs(entry: Record) -> Record:
    """The model's own inputs, by name; raises FileNotFoundError without any."""
    path: Path = entry["path"]
    if entry["feeds"] != "beside":
        models = path.parents[len(Path(entry["file"]).parts) - 1]
        return import_module("model_feeds").feeds(entry, str(models))
    script = path.with_suffix(".py")
    if script.exists():  # it writes an archive of its name here
        subprocess.run([sys.executable, script], check=True)
    files = (path.with_suffix(".npz"), path.with_name(f"{path.stem}_data.npz"), Path(f"{path.stem}.npz"))
    found = next((file for file in files if file.exists()), None)
    if found is None:
        raise FileNotFoundError("no inputs lie beside the model")
    return dict(np.load(found))


def result(entry: Record, setting: str) -> Record:
    """What `rewrite` makes of a model, and what `explain` says of it."""
    from amp_rewrite import Options, observe, rewrite  # noqa: PLC0415 - of the checkout that is tried

    (keywords, flags), seen = SETTINGS[setting], None
    if setting == "observed":
        seen = observe(entry["path"], inputs(entry), device="cpu")
        seen.save("observed.json")
    decided: list[list[str]] = []
    keep = {"observed": seen, "on_plan": lambda analysis: decided.extend(decisions(analysis))}
    try:
        made = rewrite(entry["path"].read_bytes(), Options(**keywords), **keep)
        nodes = {name: getattr(made.report.nodes, name) for name in ("half", "mixed", "full", "other")}
        record = hashes(onnx.load_from_string(made.model), nodes)
    except Exception as error:
        record = _failure(error)
    return record | {"decisions": decided, "explain": command("explain", entry["path"], *flags)[1]}


def decisions(analysis: Any) -> Iterator[list[str]]:
    """Node, type variable, precision, rule, and evidence in words, of every unit of an analysis.

    Only this function knows how the package stores them. Who changes that adapts it; the format stays.
    """
    first_step = import_module("amp_rewrite.explaining.sentences").first_step
    decided = analysis.decisions()
    for unit, decision in enumerate(decided.all):
        step = first_step(decided, unit)
        yield [decision.place, decision.variable, step.colour.value, step.rule.value, step.reason]


def command(*arguments: object) -> tuple[int, str]:
    """The exit code of a command, and all that it prints."""
    ran = CliRunner().invoke(import_module("amp_rewrite.cli").main, [str(each) for each in arguments])
    crash = "" if isinstance(ran.exception, SystemExit | None) else f"\n{ran.exception!r}"
    return ran.exit_code, ran.output + crash


def hashes(model: ModelProto, counts: Record) -> Record:
    """The hashes of a result, which is emptied for that, and more counts."""
    values, types, stored, operators = hashlib.sha256(), hashlib.sha256(), Counter[str](), Counter[str]()
    for each in list(_messages(model)):
        if isinstance(each, TensorProto):
            values.update(f"{each.name} {each.data_type} {[*each.dims]}".encode() + _content(each))
            stored[f"stored {TensorProto.DataType.Name(each.data_type).lower()}"] += 1
            each.CopyFrom(TensorProto(name=each.name, data_type=each.data_type, dims=each.dims))
        elif isinstance(each, NodeProto):
            operators[each.op_type] += 1
        elif isinstance(each, GraphProto):
            types.update(b"".join(info.SerializeToString(deterministic=True) for info in each.value_info))
            each.ClearField("value_info")
        if hasattr(each, "metadata_props"):
            others = [prop for prop in each.metadata_props if not prop.key.startswith("amp_rewrite")]
            del each.metadata_props[:]
            each.metadata_props.extend(others)
    graph = hashlib.sha256(model.SerializeToString(deterministic=True))
    digests = (each.hexdigest()[:16] for each in (graph, types, values))
    found = {"nodes": operators.total(), **dict(sorted((operators + stored).items()))}
    return dict(zip(HASHES, digests, strict=True)) | {"counts": counts | found}


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in () if isinstance(message, TensorProto) else message.ListFields():
        if field.message_type is not None:
            for each in [value] if isinstance(value, Message) else value:
                yield from _messages(each)


def _content(tensor: TensorProto) -> bytes:
    is_text = tensor.data_type == TensorProto.STRING
    return b"\0".join(tensor.string_data) if is_text else numpy_helper.to_array(tensor).tobytes()


def verdict(entry: Record, setting: str) -> Record:
    """What `amp-rewrite MODEL` concludes."""
    data = ["--data", _data(entry)] if setting == "data" else []
    code, printed = command(entry["path"], "-o", f"{setting}.onnx", "--json", "report.json", *data)
    report = Path("report.json")
    told = json.loads(report.read_text()) if report.exists() else {}
    report.unlink(missing_ok=True)
    label = re.search(r"^(PASS|FAIL|inconclusive|unchanged|not compared)  ", printed, re.MULTILINE)
    lines = [line for line in printed.splitlines() if not told or re.match("repair|search|next", line)]
    record = {"exit": code, "verdict": label[1] if label else "none"}
    steps = [name for name in ("observe", "rescale", "tune") if name in told.get("seconds", {})]
    return record | (_figures(told) if told else {}) | {"repairs": steps, "said": lines}


def _data(entry: Record) -> Path:
    recorded = entry["path"].with_name("test_data_set_0")
    if entry["feeds"] == recorded.name:
        return recorded
    arrays = inputs(entry).items()
    np.savez(
        "data.npz", **{name: each.astype(str) if each.dtype == object else each for name, each in arrays}
    )
    return Path("data.npz")


def _figures(told: Record) -> Record:
    outputs = (told["verification"] or {}).get("outputs", [])
    errors = [float(each["error"]) for each in outputs if each["error"] is not None]
    predicted, share = told["prediction"], told["flops_in_half"]
    return {
        "error": f"{max(errors):.1e}" if errors else None,
        "values lost": sum(each["metrics"]["non_finite"] for each in outputs),
        "nodes in half": told["nodes"]["half"] + told["nodes"]["mixed"],
        "casts": told["casts_added"],
        "FLOPs in half": None if share is None else round(share, 3),
        "microseconds": predicted and float(f"{predicted['result']['seconds'] * 1e6:.4g}"),
        "speed-up": predicted and round(predicted["speedup"], 3),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
