"""ONNX's operator definitions: schemas, element types, control flow, and inference based on them."""
