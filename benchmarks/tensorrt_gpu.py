"""Engines of TensorRT for RTX on a GPU: outputs against the emulation, and latency.

    python benchmarks/tensorrt_gpu.py model.onnx                  # through onnxruntime's plug-in provider
    python benchmarks/tensorrt_gpu.py --provider cpu model.onnx   # without a GPU: does the script work?

Each model is compiled in float32, as our result for `tensorrt`, and all in half. The error is the largest
relative L2 distance of an output: from float32 on that device, and from the emulation of the same result on
the CPU. The speedup is the median over rounds, each of which runs all three once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from amp_rewrite import Options, emulate, rewrite
from amp_rewrite.running.inputs import feeds

PROVIDER = "NvTensorRTRTXExecutionProvider"
RESULTS = {
    "float32": None,
    "ours": Options(target="tensorrt"),
    "all half": Options(target="tensorrt", level="unsafe-force-all"),
}
ROUNDS = 100


class NoDeviceError(Exception):
    """TensorRT for RTX cannot run here; the message says why."""


def options_for(provider: str) -> Any:
    """Session options for TensorRT's devices, or for the CPU; NoDeviceError where there are none."""
    import onnxruntime  # noqa: PLC0415 - whoever imports this module may not have it
    import onnxruntime_ep_nv_tensorrt_rtx as package  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    if provider == "cpu":
        return options
    try:
        onnxruntime.register_execution_provider_library("tensorrt", package.get_library_path())
    except Exception as error:  # onnxruntime has no common class; without libcuda it does not load
        raise NoDeviceError(str(error)) from error
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
    if not devices:
        raise NoDeviceError(f"no device for {PROVIDER}")
    options.add_provider_for_devices(devices, {})
    return options


def measure(model: Path, options: Any) -> dict[str, dict[str, float]]:
    """The errors and the speedup of each result of a model."""
    import onnxruntime  # noqa: PLC0415

    sample = next(iter(feeds.feeds(model, feeds.Data())))
    with tempfile.TemporaryDirectory() as folder:
        paths, sessions = {"float32": model}, {}
        for name, asked in RESULTS.items():
            paths[name] = Path(folder) / f"{name}.onnx" if asked else model
            if asked:
                rewrite(model, asked, output=paths[name])
            sessions[name] = onnxruntime.InferenceSession(str(paths[name]), options)
        outputs = {name: session.run(None, dict(sample)) for name, session in sessions.items()}
        seconds = _seconds(sessions, sample)
        return {
            name: {
                "error": _distance(outputs[name], outputs["float32"]),
                "from emulation": _distance(outputs[name], _emulated(paths[name], sample)),
                "speedup": statistics.median(
                    one / other for one, other in zip(seconds["float32"], seconds[name], strict=True)
                ),
            }
            for name in RESULTS
        }


def _emulated(path: Path, sample: Mapping[str, Any]) -> list[Any]:
    import onnxruntime  # noqa: PLC0415

    session = onnxruntime.InferenceSession(emulate(onnx.load(path)).SerializeToString())
    return session.run(None, dict(sample))


def _seconds(sessions: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, list[float]]:
    seconds = {name: list[float]() for name in sessions}
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            begin = time.perf_counter()
            session.run(None, dict(sample))
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def _distance(found: list[Any], expected: list[Any]) -> float:
    """The largest relative L2 distance of an output of floats."""
    pairs = [(np.float64(a), np.float64(b)) for a, b in zip(found, expected, strict=True)]
    return max(float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1)) for a, b in pairs)


def main() -> None:
    """Measures each model and prints a line of JSON for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--provider", choices=("tensorrt", "cpu"), default="tensorrt")
    asked = parser.parse_args()
    options = options_for(asked.provider)
    for model in asked.models:
        print(json.dumps({"model": str(model), **measure(model, options)}), flush=True)


if __name__ == "__main__":
    main()
