"""The rewrite as a pass of Olive, as its users write their own: a class, and a package file that names it.

    olive run --config olive_run.json --package-config olive_package.json    # with this folder on PYTHONPATH
    python examples/pipelines/olive_pass.py FOLDER                           # the same, on a small model

Needs olive-ai. A package file replaces Olive's own: list in it all passes of the run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

import amp_rewrite
from amp_rewrite import Options, demo

HERE = Path(__file__).parent


class AmpRewrite(Pass):
    """Rewrites a model to mixed precision."""

    @classmethod
    def _default_config(
        cls,
        accelerator_spec: AcceleratorSpec,  # noqa: ARG003 - Olive's signature
    ) -> dict[str, PassConfigParam]:
        return {
            "half": PassConfigParam(type_=str, default_value="float16", description="float16 or bfloat16"),
            "level": PassConfigParam(type_=str, default_value="default", description="As of --level"),
            "io": PassConfigParam(type_=str, default_value="keep", description="keep, or half"),
            "target": PassConfigParam(type_=str, default_value="onnxruntime-cuda", description="As --target"),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        path = resolve_onnx_path(output_model_path, Path(model.model_path).name)
        asked = Options(half=config.half, level=config.level, io=config.io, target=config.target)
        amp_rewrite.rewrite(Path(model.model_path), asked, output=path)
        return ONNXModelHandler(path)


def main() -> None:
    """Writes model.onnx, model_fp16.onnx (by Olive) and inputs.npz, and prints the verdict."""
    from olive.workflows import run  # noqa: PLC0415 - Olive imports this module as users' code, and needs it not

    folder = Path(sys.argv[1])
    onnx.save(demo.network(), folder / "model.onnx")
    np.savez(folder / "inputs.npz", **demo.feeds())
    sys.path.insert(0, str(HERE))  # from where Olive imports olive_pass.AmpRewrite
    config = json.loads((HERE / "olive_run.json").read_text())
    config["input_model"]["model_path"] = str(folder / "model.onnx")
    config["output_dir"] = str(folder / "olive")
    config["cache_dir"] = str(folder / "olive_cache")
    made = run(config, package_config=HERE / "olive_package.json").get_best_candidate()
    onnx.save(onnx.load(made.model_path), folder / "model_fp16.onnx")
    print(f"{made.model_path}: ", end="")
    verdict = amp_rewrite.verify(folder / "model.onnx", folder / "model_fp16.onnx", demo.feeds())
    print(f"error {verdict.error:.1e}, {'PASS' if verdict.ok else 'FAIL'}")


if __name__ == "__main__":
    main()
