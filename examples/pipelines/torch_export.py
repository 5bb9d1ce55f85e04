"""PyTorch to half in memory: `torch.onnx.export(dynamo=True)`, then `AmpPass` on the exporter's own model.

    python examples/pipelines/torch_export.py FOLDER

Needs torch and onnxscript. An `ONNXProgram` holds an onnx_ir.Model (`program.model`), which onnx-ir's passes
take as it is: nothing is written and read again in between.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx_ir
import torch
from onnx_ir.passes import Sequential
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import Tensor, nn

from amp_rewrite import AmpPass, Options, verify


class Encoder(nn.Module):
    """A small transformer over patches of an image, with a classifier."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, norm_first=True, batch_first=True)
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Scores of ten classes, for images in 0..1."""
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens).mean(1))


def main() -> None:
    """Writes model.onnx, model_fp16.onnx and inputs.npz, and prints the verdict."""
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    image = torch.rand(2, 3, 64, 64)
    program = torch.onnx.export(
        Encoder().eval(),
        (image,),
        dynamo=True,
        opset_version=20,
        input_names=["image"],
        output_names=["scores"],
        dynamic_shapes={"image": {0: "batch"}},
        verbose=False,
    )
    rewritten = Sequential(RemoveUnusedNodesPass(), AmpPass(Options(half="float16")))(program.model).model
    onnx_ir.save(program.model, folder / "model.onnx")
    onnx_ir.save(rewritten, folder / "model_fp16.onnx")
    sample = {"image": image.numpy()}
    np.savez(folder / "inputs.npz", **sample)
    verdict = verify(program.model, rewritten, sample)
    print(f"{folder / 'model_fp16.onnx'}: error {verdict.error:.1e}, {'PASS' if verdict.ok else 'FAIL'}")


if __name__ == "__main__":
    main()
