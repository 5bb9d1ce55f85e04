"""The kernels of the onnxruntime that is installed, as it registers them: the exact table.

    python benchmarks/kernels.py --json benchmarks/results/kernels.json

docs/gpu.md describes the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_CHILD = """
import json
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state
if hasattr(onnxruntime, "preload_dlls"):
    onnxruntime.preload_dlls()
print()
print(json.dumps([
    [k.provider, k.domain, k.op_name, list(k.version_range), k.type_constraints] for k in state.get_all_opkernel_def()
]))
"""
"""Asked for in a process of its own: without the CUDA libraries a GPU build crashes here."""

_OPEN = (1 << 31) - 1
"""What onnxruntime writes for a kernel that serves every later version."""


def kernels() -> list[dict[str, object]]:
    """All kernels, sorted; RuntimeError where onnxruntime crashes over the question."""
    child = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=False)
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


def table() -> dict[str, object]:
    """The kernels with what they were read from, and when."""
    found = kernels()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "onnxruntime": runtime_version(),
        "providers": sorted({str(kernel["provider"]) for kernel in found}),
        "kernels": found,
    }


def runtime_version() -> str:
    """The package that brings onnxruntime, and its version."""
    for package in ("onnxruntime-gpu", "onnxruntime"):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return "unknown"


def write(path: Path) -> int:
    """Writes the table, a kernel a line, and returns how many there are."""
    made = table()
    rows = ",\n".join(json.dumps(kernel) for kernel in made.pop("kernels"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{json.dumps(made)[:-1]}, "kernels": [\n{rows}\n]}}\n')
    return rows.count("\n") + 1


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    path = parser.parse_args().json
    print(f"{write(path):,} kernels of {runtime_version()} -> {path}")


if __name__ == "__main__":
    main()
