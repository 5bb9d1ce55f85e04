"""What ONNX says of operators: schemas, element types, control flow, and inference on the side."""
