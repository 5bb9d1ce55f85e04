"""Memory of an onnxruntime session: a float32 model, one with its weights stored in half, one in float16.

    python benchmarks/storage.py [--mib 512] [--folder FOLDER]

The model is a chain of matrix products with 64 MiB of weights each, in one file or with external data. Each
session opens on the CPU in a process of its own, which prints what it holds beyond an import of onnxruntime.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite import Options, rewrite

SIDE = 4096
OPEN = """
import re, sys
from pathlib import Path
import onnxruntime
status = Path("/proc/self/status")
held = lambda: [int(re.search(rf"{key}:\\s+(\\d+)", status.read_text())[1]) for key in ("VmRSS", "VmHWM")]
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(int(sys.argv[2]))
before = held()[0]
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
opened = held()
session.run(None, {"x0": [[1.0] * 4096]})
print(*((now - before) >> 10 for now in (*opened, *held())))
"""


def network(mib: int) -> onnx.ModelProto:
    """Return a chain of products with this many MiB of weights."""
    rng, count = np.random.default_rng(0), max(1, mib // 64)
    weights = [
        numpy_helper.from_array((rng.standard_normal((SIDE, SIDE), np.float32) / 64), f"w{i}")
        for i in range(count)
    ]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], f"n{i}") for i in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE]) for name in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


def main() -> None:
    """Print a row for every model and layout, optimised by onnxruntime and not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    print("| model | weights | optimised | file, MiB | opened | peak | after a run | peak |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        source = Path(folder, "float32.onnx")
        onnx.save(network(asked.mib), source)
        for beside in ("never", "always"):
            for name, storage_only in {"float32": None, "storage-only": True, "float16": False}.items():
                path = Path(folder, f"{name}_{beside}.onnx")
                if storage_only is None:
                    data, model = f"{path.name}.data", onnx.load(source)
                    onnx.save(model, path, save_as_external_data=beside == "always", location=data)
                else:
                    rewrite(source, Options(external_data=beside, storage_only=storage_only), output=path)
                size = sum(
                    file.stat().st_size for file in Path(folder).glob(f"{path.stem}*") if file.is_file()
                )
                for level, optimises in ((99, "yes"), (0, "no")):
                    command = [sys.executable, "-c", OPEN, path, str(level)]
                    held = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                    where = "in the file" if beside == "never" else "beside it"
                    print("|", " | ".join([name, where, optimises, str(size >> 20), *held]), "|", flush=True)


if __name__ == "__main__":
    main()
