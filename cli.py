"""The command of a bare clone: python cli.py model.onnx -o model_fp16.onnx."""

from amp_rewrite.__main__ import main

if __name__ == "__main__":
    main()
