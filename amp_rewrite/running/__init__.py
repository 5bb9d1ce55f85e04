"""Everything that needs onnxruntime."""
