"""Facts about ONNX's operators, as tables: whoever analyses and whoever proves read the same ones."""
