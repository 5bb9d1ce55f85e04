"""Our results and those of other tools on real models: what converts, is valid, loads and is close.

    python benchmarks/peers.py VENVS                     # once: a virtual environment for each tool
    python benchmarks/comparison.py FOLDER --peers-venv VENVS --markdown benchmarks/results/comparison.md

FOLDER is any folder of models with their inputs beside them (`model.npz` for `model.onnx`; model_folder.py
says more). Each tool keeps inputs and outputs in float32 and is at its defaults otherwise. Conversions and
comparisons are processes of their own: one that crashes costs one cell. It takes half a minute for a model;
with `--json FILE` a run that was ended goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from model_folder import Model, models, named
from peers import AUTOCAST, CONVERTER_COMMON, ORT, OURS, Converted, Peer, convert, python_of

from amp_rewrite import measure_coverage, measure_placement, verify
from amp_rewrite.errors import MissingPackageError
from amp_rewrite.running.inputs.feeds import Data, given_sizes

ORIGINAL = Peer("the model itself", "import shutil", "shutil.copyfile(source, target)")
BY_COMMAND = Peer(
    "amp-rewrite, the command",
    "import pathlib, subprocess",
    "data = pathlib.Path(source).with_suffix('.npz')\n"
    "given = ['--data', str(data)] if data.exists() else []\n"
    "subprocess.run([sys.executable, '-m', 'amp_rewrite', source, '-q', '-o', target, *given])",
)
"""`amp-rewrite MODEL --data MODEL.npz`, which compares, and mends what is too far."""

FOR_TENSORRT = tuple(
    Peer(f"{peer.name}, for TensorRT", peer.imports, peer.convert.replace(old, new))
    for peer, old, new in (
        (OURS, "Options()", "Options(target='tensorrt')"),
        (BY_COMMAND, "'-q'", "'-q', '--target', 'tensorrt'"),
    )
)

AUTOCAST_WITH_DATA = Peer(
    AUTOCAST.name,
    AUTOCAST.imports + "\nimport pathlib",
    "data = pathlib.Path(source).with_suffix('.npz')\n"
    "given = str(data) if data.exists() else None\n"
    + AUTOCAST.convert.replace("keep_io_types", "calibration_data=given, keep_io_types"),
    package=AUTOCAST.package,
)
"""With the same inputs; on random ones, its default, its reference run fails for many models."""

PEERS = (ORIGINAL, OURS, BY_COMMAND, *FOR_TENSORRT, ORT, CONVERTER_COMMON, AUTOCAST_WITH_DATA)
PACKAGES = ("onnx", "onnxruntime")
HEADING = """# The other tools on real models

{all} models of at most {largest:g} MB with inputs of their own, converted to float16 with inputs and
outputs in float32, each tool at its defaults, for at most {limit:g} s. "amp-rewrite" is the rewrite alone,
from Python; "the command" is `amp-rewrite MODEL --data MODEL.npz`, which compares and mends what is too
far; "for TensorRT" is with `--target tensorrt`; AutoCast gets the same inputs as calibration data. "Valid" is
by onnx's full check, "loads" by onnxruntime's CPU provider. Errors are the largest relative L2 error of an
output with half emulated (every half value is rounded after the node that makes it), infinite where a value
is not finite in the result only. "In half" counts the models within 1e-2 that have a node in half. "TensorRT
builds" is out of the {built} models that TensorRT for RTX builds unchanged, in float32: those whose result it
parses and compiles for the sizes of the inputs, which needs no GPU; † marks the others. Seconds are medians.

Made on {date} by `{command}` with {versions}.
FOLDER is a folder of models with their inputs beside them (`model.npz` for `model.onnx`), and is not part of
this repository; `benchmarks/model_folder.py` describes it, so that you can use your own.

| tool | converted | valid | loads | error <= 1e-2 | in half | error <= 1e-3 | TensorRT builds | seconds |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def measure(model: Model, result: Path) -> dict[str, float]:
    """The largest relative L2 error of a result and its nodes in half; exits where it does not run."""
    verdict = verify(model.path, result, [model.sample()], device="cpu")
    if not verdict.outputs:
        raise SystemExit("; ".join(verdict.faults))
    floats = [output.metrics for output in verdict.outputs]
    lost = any(each.non_finite for each in floats)
    worst = max((each.relative_l2 for each in floats), default=0.0)
    nodes = measure_coverage(result).nodes
    return {"error": float("inf") if lost else worst, "half": nodes.half + nodes.mixed}


def tensorrt_refusal(model: Model, result: Path) -> str | None:
    """TensorRT's reason not to compile a result, empty where it does; None where it is not installed."""
    try:
        dims = given_sizes(result, Data(model.data)).dims
        return measure_placement(result, "tensorrt", dims=dims).refused
    except MissingPackageError:
        return None
    except Exception as error:  # a broken result
        return str(error)


def row(peer: Peer, model: Model, folder: Path, venvs: Path | None, limit: float) -> dict[str, object]:
    """One tool on one model: what its result is, or in `failed` why there is none."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "model.onnx"
        for beside in model.path.parent.iterdir():  # external data too
            if beside.is_file():
                shutil.copyfile(beside, Path(scratch) / beside.name)
        shutil.copyfile(model.path, source)
        made = convert(peer, source, venvs, limit)
        return _row(made, model, folder)


def _row(made: Converted, model: Model, folder: Path) -> dict[str, object]:
    if made.failure:
        return {"failed": made.failure}
    command = [sys.executable, "-W", "ignore", __file__, folder, "--one", model.name, made.path]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    found: dict[str, object] = {"seconds": made.seconds, "valid": not made.broken}
    for line in done.stdout.splitlines():
        found |= json.loads(line) if line.startswith("{") else {}
    if done.returncode == 0:
        return found
    return found | {"refused": (done.stderr.strip().splitlines() or ["crashed"])[-1][:200]}


def markdown(found: dict[str, dict[str, dict[str, object]]], above: str) -> str:
    """The totals of each tool, and its error on each model."""
    totals = "\n".join(_totals(peer, list(found.values())) for peer in _names(found))
    names = [name for name in _names(found) if name != ORIGINAL.name]
    lines = [
        f"| {model} | {' | '.join(_cell(rows, name) for name in names)} |" for model, rows in found.items()
    ]
    head = f"\n\n## Errors, model by model\n\n| model | {' | '.join(names)} |\n|---|{'--:|' * len(names)}\n"
    return above + totals + head + "\n".join(lines) + "\n"


def tensorrt_builds(rows: dict[str, dict[str, object]], name: str) -> bool:
    """Whether TensorRT builds a result, and the model itself."""
    return all(rows[each].get("tensorrt") == "" for each in (ORIGINAL.name, name))


def _names(found: dict[str, dict[str, dict[str, object]]]) -> list[str]:
    return list(next(iter(found.values())))


def _totals(name: str, models: Sequence[dict[str, dict[str, object]]]) -> str:
    made = [rows[name] for rows in models if "failed" not in rows[name]]
    loaded = [each for each in made if "error" in each]
    close = [each for each in loaded if float(each["error"]) <= 1e-2]
    seconds = sorted(float(each["seconds"]) for each in made)
    counts = [
        len(made),
        sum(bool(each["valid"]) for each in made),
        len(loaded),
        len(close),
        sum(bool(each["half"]) for each in close),
        sum(float(each["error"]) <= 1e-3 for each in loaded),
        sum(tensorrt_builds(rows, name) for rows in models),
    ]
    median = f"{seconds[len(seconds) // 2]:.2f}" if seconds else ""
    return f"| {name} | {' | '.join(map(str, counts))} | {median} |"


def _cell(rows: dict[str, dict[str, object]], name: str) -> str:
    found = rows[name]
    if "failed" in found:
        return "not converted"
    mark = " †" if tensorrt_builds(rows, ORIGINAL.name) and not tensorrt_builds(rows, name) else ""
    if "refused" in found:
        return f"does not load{mark}"
    text = f"{float(found['error']):.1e}{mark}"
    return text if found["half"] else f"{text} (none in half)"


def installed(venvs: Path | None) -> Iterator[Peer]:
    """The tools that there are."""
    for peer in PEERS:
        if python_of(peer, venvs) is not None:
            yield peer


def main() -> None:
    """Compares on every model and prints the table, or measures one result for a parent process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers-venv", type=Path)
    parser.add_argument("--largest", type=float, default=20.0, help="MB of a model")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a conversion")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path, help="results; those that are there are not measured again")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "RESULT"))
    asked = parser.parse_args()
    if asked.one:
        model, result = named(asked.folder, asked.one[0]), Path(asked.one[1])
        print(json.dumps({"tensorrt": tensorrt_refusal(model, result)}), flush=True)
        print(json.dumps(measure(model, result)))
        return
    chosen = [
        each for each in models(asked.folder) if each.runs and each.path.stat().st_size <= asked.largest * 1e6
    ]
    if not chosen:
        parser.error("no model has inputs beside it and is small enough")
    peers, found = list(installed(asked.peers_venv)), dict[str, dict[str, dict[str, object]]]()
    done = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    for model in chosen:
        known = done.get(model.name, {})
        found[model.name] = {
            peer.name: known.get(peer.name) or row(peer, model, asked.folder, asked.peers_venv, asked.limit)
            for peer in peers
        }
        print(markdown({model.name: found[model.name]}, "").splitlines()[-1], flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(done | found, indent=1) + "\n")
    text = markdown(found, heading(found, asked.largest, asked.limit))
    print(text)
    if asked.markdown:
        asked.markdown.write_text(text)


def heading(found: dict[str, dict[str, dict[str, object]]], largest: float, limit: float) -> str:
    """What stands above the totals, with how they were made."""
    return HEADING.format(
        all=len(found),
        built=sum(tensorrt_builds(rows, ORIGINAL.name) for rows in found.values()),
        largest=largest,
        limit=limit,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        command=f"python benchmarks/comparison.py FOLDER --peers-venv VENVS --largest {largest:g} "
        f"--limit {limit:g} --markdown FILE",
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
    )


if __name__ == "__main__":
    main()
