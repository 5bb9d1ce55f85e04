"""What runtimes read and onnx-ir does not: taken out or mended on the way in, put back on the way out."""
