"""onnxruntime's transformer optimiser first, which fuses attention, then half.

    python examples/pipelines/ort_optimizer.py FOLDER

Needs torch, onnxscript, transformers, and what onnxruntime.transformers imports (sympy, coloredlogs, psutil).
Leave its own `convert_float_to_float16` out: the fused graph is float32, and what is half in it is decided by
the schemas of the fused operators.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import torch
from onnxruntime.transformers.optimizer import optimize_model
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from amp_rewrite import rewrite, verify

CONFIG = BertConfig(
    vocab_size=256,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    attn_implementation="eager",
)


class Hidden(nn.Module):
    """A BERT's last hidden state, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel(CONFIG, add_pooling_layer=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The state of every token."""
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def main() -> None:
    """Writes model.onnx (fused), model_fp16.onnx and inputs.npz, and prints the fusions and the verdict."""
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    given = torch.randint(0, 256, (2, 16)), torch.ones(2, 16, dtype=torch.int64)
    names = ["input_ids", "attention_mask"]
    program = torch.onnx.export(
        Hidden().eval(), given, input_names=names, output_names=["hidden"], dynamo=True, verbose=False
    )
    exported = folder / "exported.onnx"
    program.save(exported)
    optimised = optimize_model(
        str(exported),
        model_type="bert",
        num_heads=CONFIG.num_attention_heads,
        hidden_size=CONFIG.hidden_size,
        opt_level=0,  # the graph's own fusions, for any device; not what a session would write
    )
    fused, half = folder / "model.onnx", folder / "model_fp16.onnx"
    optimised.save_model_to_file(str(fused))  # which also imports com.microsoft, unlike `optimised.model`
    rewrite(fused, output=half)
    sample = dict(zip(names, (value.numpy() for value in given), strict=True))
    np.savez(folder / "inputs.npz", **sample)
    print("fused:", dict(Counter(n.op_type for n in onnx.load(fused).graph.node if n.domain)))
    verdict = verify(fused, half, sample)
    print(f"{half}: error {verdict.error:.1e}, {'PASS' if verdict.ok else 'FAIL'}")


if __name__ == "__main__":
    main()
