"""The same command by another door: python -m amp_rewrite model.onnx -o model_fp16.onnx."""

import sys

from amp_rewrite.cli import main

if __name__ == "__main__":
    sys.exit(main())
