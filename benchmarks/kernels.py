"""Lists the kernels that the installed onnxruntime registers.

    python benchmarks/kernels.py --json benchmarks/results/kernels.json
    python benchmarks/kernels.py --condense benchmarks/results/kernels.json --json cuda_kernels.json
    python benchmarks/kernels.py --webgpu --json benchmarks/results/kernels_webgpu.json

The last lists those of the WebGPU provider, which is a package of its own and needs no adapter for it. The
second extracts from such a file what decides where half can run. docs/measurements.md describes the two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_STUBS = Path(__file__).parents[1] / "tools" / "stub_libraries.py"
"""Runs a command with stub CUDA libraries where an onnxruntime-gpu has no CUDA."""

_CHILD = """
import json
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state
if hasattr(onnxruntime, "preload_dlls"):
    onnxruntime.preload_dlls()
print()
defined = state.get_all_opkernel_def()
rows = [[k.provider, k.domain, k.op_name, list(k.version_range), k.type_constraints] for k in defined]
print(json.dumps(rows))
"""
"""Runs in a child process: without the CUDA libraries a GPU build crashes here."""

_WEBGPU = """
import json
os.environ["ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"] = "1"
import onnxruntime
import onnxruntime_ep_webgpu
from onnxruntime.capi import onnxruntime_pybind11_state as state
onnxruntime.register_execution_provider_library("webgpu", onnxruntime_ep_webgpu.get_library_path())
print()
defined = state.get_registered_ep_kernel_defs("WebGpuExecutionProvider")
rows = [[k.provider, k.domain, k.op_name, list(k.version_range), k.type_constraints] for k in defined]
print(json.dumps(rows))
"""
"""The same for the provider that is registered."""

_OPEN = (1 << 31) - 1
"""onnxruntime's last version of a kernel that serves all later versions."""


def kernels(*, webgpu: bool = False) -> list[dict[str, object]]:
    """All kernels, sorted, or those for WebGPU; RuntimeError if onnxruntime crashes on listing them."""
    child = subprocess.run(
        [sys.executable, _STUBS, sys.executable, "-c", _WEBGPU if webgpu else _CHILD],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        raise RuntimeError(f"onnxruntime cannot list its kernels (exit code {child.returncode})")
    rows = json.loads(child.stdout.splitlines()[-1])
    return sorted((_kernel(*row) for row in rows), key=lambda kernel: json.dumps(kernel, sort_keys=True))


def _kernel(
    provider: str, domain: str, operator: str, versions: list[int], types: dict[str, list[str]]
) -> dict[str, object]:
    first, last = versions
    return {
        "provider": provider,
        "domain": "" if domain == "ai.onnx" else domain,
        "operator": operator,
        "since": first,
        "until": None if last >= _OPEN else last,
        "types": {name: sorted(kinds) for name, kinds in sorted(types.items())},
    }


def table(*, webgpu: bool = False) -> dict[str, object]:
    """The kernels with their source and the date."""
    found = kernels(webgpu=webgpu)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "onnxruntime": runtime_version("onnxruntime-ep-webgpu") if webgpu else runtime_version(),
        "providers": sorted({str(kernel["provider"]) for kernel in found}),
        "kernels": found,
    }


def runtime_version(*packages: str) -> str:
    """The package that provides onnxruntime, or the first of these, and its version."""
    for package in packages or ("onnxruntime-gpu", "onnxruntime"):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return "unknown"


def write(path: Path, *, webgpu: bool = False) -> int:
    """Writes the table, one kernel per line, and returns their number."""
    made = table(webgpu=webgpu)
    rows = ",\n".join(json.dumps(kernel) for kernel in made.pop("kernels"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{json.dumps(made)[:-1]}, "kernels": [\n{rows}\n]}}\n')
    return rows.count("\n") + 1


CUDA = "CUDAExecutionProvider"
INTERNAL = ("com.ms.internal.nhwc",)
"""Domains of operators that onnxruntime substitutes for others; no model contains them."""
FLOATS = ("float", "float16", "bfloat16")
"""The types that a target is queried for, in tensors and sequences; other types are irrelevant."""


def condensed(made: dict[str, object], provider: str | None = None) -> dict[str, object]:
    """The kernels of one provider that decide where half can run, by operator as named in lists.

    The provider is CUDA's where there are several. Operators without a kernel for any of the three types are
    omitted.
    """
    names = {kernel["provider"] for kernel in made["kernels"]}
    provider = provider or (names.pop() if len(names) == 1 else CUDA)
    operators: dict[str, dict[tuple[int, int | None], list[Types]]] = {}
    for kernel in made["kernels"]:
        types = _float_types(kernel["types"])
        if kernel["provider"] == provider and types and kernel["domain"] not in INTERNAL:
            span = (kernel["since"], kernel["until"])
            known = operators.setdefault(_listed(kernel), {}).setdefault(span, [])
            known += [] if types in known else [types]
    return {
        "onnxruntime": made["onnxruntime"],
        "provider": provider,
        "operators": {name: list(_entries(spans)) for name, spans in sorted(operators.items())},
    }


Types = dict[str, list[str]]


def _float_types(types: Types) -> Types:
    """The type variables of a kernel that accept float types, with the bare names of these types."""
    bare = {
        name: [f for f in FLOATS if any(f"tensor({f})" in k for k in kinds)] for name, kinds in types.items()
    }
    return {name: kinds for name, kinds in bare.items() if kinds}


def _listed(kernel: dict[str, object]) -> str:
    return f"{kernel['domain']}:{kernel['operator']}" if kernel["domain"] else str(kernel["operator"])


def _entries(spans: dict[tuple[int, int | None], list[Types]]) -> Iterator[dict[str, object]]:
    for since, until in sorted(spans, key=lambda span: span[0]):
        yield {"since": since, "until": until, "types": spans[since, until]}


def write_condensed(source: Path, path: Path) -> int:
    """Writes the condensed form of a table, one operator per line, and returns their number."""
    made = condensed(json.loads(source.read_text()))
    operators = made.pop("operators")
    write_table(made, operators, path)
    return len(operators)


def write_table(about: dict[str, object], operators: dict[str, object], path: Path) -> None:
    """Writes a table of kernels, one operator per line."""
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(entries)}" for name, entries in operators.items())
    path.write_text(f'{json.dumps(about)[:-1]}, "operators": {{\n{rows}\n}}}}\n')


def main() -> None:
    """Writes one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--condense", type=Path, metavar="TABLE")
    parser.add_argument("--webgpu", action="store_true", help="list the kernels of onnxruntime-ep-webgpu")
    asked = parser.parse_args()
    if asked.condense:
        print(f"{write_condensed(asked.condense, asked.json):,} operators -> {asked.json}")
    else:
        print(f"{write(asked.json, webgpu=asked.webgpu):,} kernels -> {asked.json}")


if __name__ == "__main__":
    main()
