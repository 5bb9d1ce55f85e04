"""A decoder of `transformers`, exported by hand with past keys and values, then rewritten and run with them.

    python examples/pipelines/decoder.py FOLDER

Needs torch, onnxscript and transformers. The weights are random, so that nothing is downloaded; for a trained
model, replace LlamaForCausalLM(CONFIG) by AutoModelForCausalLM.from_pretrained(...). The past is half in the
result with `io="half"`: the cache then takes half the memory, and no Cast stands between two steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from amp_rewrite import Options, rewrite, verify

CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    attn_implementation="eager",
)
NAMES = [f"{i}.{part}" for i in range(CONFIG.num_hidden_layers) for part in ("key", "value")]
HEADS, WIDTH = CONFIG.num_key_value_heads, CONFIG.hidden_size // CONFIG.num_attention_heads


class WithPast(nn.Module):
    """The decoder with its cache as inputs and outputs: what an ONNX graph can hold."""

    def __init__(self, decoder: LlamaForCausalLM) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor):
        """Logits, and keys and values with those of these tokens behind."""
        cache = DynamicCache(ddp_cache_data=list(zip(past[::2], past[1::2], strict=True)))
        made = self.decoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        layers = made.past_key_values.layers
        return made.logits, *(held for layer in layers for held in (layer.keys, layer.values))


def export() -> onnx.ModelProto:
    """The decoder as a graph with open sizes: batch, sequence and past."""
    torch.manual_seed(0)
    past = [torch.randn(2, HEADS, 5, WIDTH) for _ in NAMES]
    tokens, positions = torch.randint(0, 256, (2, 3)), torch.arange(5, 8).expand(2, 3)
    open_sizes = {0: "batch", 1: "sequence"}
    program = torch.onnx.export(
        WithPast(LlamaForCausalLM(CONFIG)).eval(),
        (tokens, torch.ones(2, 8, dtype=torch.int64), positions, *past),
        dynamo=True,
        opset_version=20,
        verbose=False,
        input_names=["input_ids", "attention_mask", "position_ids", *(f"past.{name}" for name in NAMES)],
        output_names=["logits", *(f"present.{name}" for name in NAMES)],
        dynamic_shapes={
            "input_ids": open_sizes,
            "attention_mask": {0: "batch", 1: "total"},
            "position_ids": open_sizes,
            "past": tuple({0: "batch", 2: "past"} for _ in NAMES),
        },
    )
    return program.model_proto


def feeds(tokens: np.ndarray, past: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs of a step; `past` holds the cache by the names of its inputs."""
    batch, length = tokens.shape
    before = past["past.0.key"].shape[2]
    positions = np.tile(np.arange(before, before + length), (batch, 1))
    mask = np.ones((batch, before + length), np.int64)
    return {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, **past}


def generate(model: onnx.ModelProto, tokens: np.ndarray, dtype: type, steps: int = 4) -> np.ndarray:
    """The tokens that follow, each the most likely one; the cache goes from outputs to inputs as it is."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    past = {f"past.{name}": np.zeros((len(tokens), HEADS, 0, WIDTH), dtype) for name in NAMES}
    made = []
    for _ in range(steps):
        found = dict(zip(outputs, session.run(outputs, feeds(tokens, past)), strict=True))
        past = {f"past.{name}": found[f"present.{name}"] for name in NAMES}
        tokens = found["logits"][:, -1:].argmax(-1)
        made.append(tokens)
    return np.concatenate(made, axis=1)


def main() -> None:
    """Writes model.onnx, model_fp16.onnx and inputs.npz, and prints the verdict and the tokens of both."""
    folder = Path(sys.argv[1])
    model = export()
    rewritten = rewrite(model, Options(io="half")).model
    onnx.save(model, folder / "model.onnx")
    onnx.save(rewritten, folder / "model_fp16.onnx")
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, (2, 3))
    past = {f"past.{name}": rng.standard_normal((2, HEADS, 5, WIDTH)).astype(np.float32) for name in NAMES}
    np.savez(folder / "inputs.npz", **feeds(tokens, past))
    verdict = verify(model, rewritten, feeds(tokens, past), io="half")
    print(f"{folder / 'model_fp16.onnx'}: error {verdict.error:.1e}, {'PASS' if verdict.ok else 'FAIL'}")
    for graph, dtype in (model, np.float32), (rewritten, np.float16):
        print(f"tokens with a cache in {np.dtype(dtype)}: {generate(graph, tokens, dtype).tolist()}")


if __name__ == "__main__":
    main()
