"""A model for onnxruntime-web: one file, float32 inputs and outputs, half between them.

    python examples/pipelines/browser.py FOLDER

Needs torch and onnxscript. JavaScript's arrays are float32 (Float16Array is younger than many browsers), so
inputs and outputs keep their types, which is the default. The page fetches one file: data is stored in it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn


def network() -> nn.Module:
    """A small image classifier."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()


def main() -> None:
    """Writes model.onnx, model_fp16.onnx and inputs.npz, and prints what a page has to give and gets."""
    folder = Path(sys.argv[1])
    image = torch.rand(1, 3, 64, 64)
    program = torch.onnx.export(
        network(),
        (image,),
        dynamo=True,
        opset_version=20,
        input_names=["image"],
        output_names=["scores"],
        verbose=False,
    )
    model, half, inputs = (folder / name for name in ("model.onnx", "model_fp16.onnx", "inputs.npz"))
    program.save(model)
    np.savez(inputs, image=image.numpy())
    command = ["amp_rewrite", str(model), "-o", str(half), "--data", str(inputs)]
    asked = ["--target", "onnxruntime-webgpu", "--io", "keep", "--external-data", "never"]
    subprocess.run([sys.executable, "-m", *command, *asked], check=True)
    session = onnxruntime.InferenceSession(str(half), providers=["CPUExecutionProvider"])
    for value in (*session.get_inputs(), *session.get_outputs()):
        print(f"{value.name}: {value.type} {value.shape}")


if __name__ == "__main__":
    main()
