"""A detector in the manner of YOLO: half in the graph, boxes chosen (NMS) outside of it.

    python examples/pipelines/detector.py FOLDER

Needs torch and onnxscript. Images are in 0..1, which the command line is told: bounds of all other values
follow from it. Boxes are in pixels, up to 640, where half is exact to 0.5: `--tolerance` says what is enough.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

SIZE, CLASSES, STRIDES = 640, 4, (8, 16, 32)


class Block(nn.Sequential):
    """A convolution that halves the size, with a norm and SiLU."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.SiLU())


class Detector(nn.Module):
    """Three scales, each with boxes around its cells and the scores of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(Block(3, 8), Block(8, 16))
        self.stages = nn.ModuleList([Block(16, 32), Block(32, 32), Block(32, 32)])
        self.heads = nn.ModuleList(nn.Conv2d(32, 4 + CLASSES, 1) for _ in STRIDES)
        for head in self.heads:  # random, but sure of what it finds: equal scores would have no order
            nn.init.normal_(head.weight[4:], std=3.0)
        for stride in STRIDES:
            at = (torch.arange(SIZE // stride) + 0.5) * stride
            cells = torch.stack(torch.meshgrid(at, at, indexing="xy")).flatten(1)
            self.register_buffer(f"cells_{stride}", cells)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes as left, top, right, bottom in pixels (N, cells, 4), and scores (N, cells, CLASSES)."""
        maps, boxes, scores = self.stem(images), [], []
        for stage, head, stride in zip(self.stages, self.heads, STRIDES, strict=True):
            maps = stage(maps)
            sides, found = head(maps).flatten(2).split((4, CLASSES), 1)
            sides, cells = torch.exp(sides) * stride, getattr(self, f"cells_{stride}")
            boxes.append(torch.cat((cells - sides[:, :2], cells + sides[:, 2:]), 1))
            scores.append(torch.sigmoid(found))
        return torch.cat(boxes, 2).transpose(1, 2), torch.cat(scores, 2).transpose(1, 2)


def chosen(boxes: np.ndarray, scores: np.ndarray, overlap: float = 0.5, most: int = 10) -> list[int]:
    """Non-maximum suppression: the best boxes (cells, 4), none of which overlaps a better one too much."""
    left, kept = list(np.argsort(-scores)), []
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    while left and len(kept) < most:
        best, *left = left
        kept.append(int(best))
        inner = np.minimum(boxes[best, 2:], boxes[left, 2:]) - np.maximum(boxes[best, :2], boxes[left, :2])
        shared = np.prod(np.maximum(inner, 0), axis=1)
        near = shared / (area[best] + area[left] - shared) > overlap
        left = [other for other, is_near in zip(left, near, strict=True) if not is_near]
    return kept


def detect(model: Path, images: np.ndarray) -> set[int]:
    """The cells whose boxes are chosen in the first image."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    boxes, scores = session.run(None, {"images": images})
    return set(chosen(boxes[0], scores[0].max(axis=1)))


def main() -> None:
    """Writes model.onnx, model_fp16.onnx and inputs.npz, and prints how many boxes are the same."""
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    images = torch.nn.functional.interpolate(torch.rand(1, 3, 40, 40), size=(SIZE, SIZE), mode="bilinear")
    program = torch.onnx.export(
        Detector().eval(),
        (images,),
        dynamo=True,
        opset_version=20,
        input_names=["images"],
        output_names=["boxes", "scores"],
        verbose=False,
    )
    model, half, inputs = (folder / name for name in ("model.onnx", "model_fp16.onnx", "inputs.npz"))
    program.save(model)
    np.savez(inputs, images=images.numpy())
    command = ["amp_rewrite", str(model), "-o", str(half), "--data", str(inputs)]
    asked = ["--range", "images=0:1", "--tolerance", "error=0.005", "--tolerance", "cosine=0.9999"]
    subprocess.run([sys.executable, "-m", *command, *asked], check=True)
    found = [detect(path, images.numpy()) for path in (model, half)]
    print(f"{len(found[0] & found[1])} boxes of {len(found[0])} are chosen from both")


if __name__ == "__main__":
    main()
