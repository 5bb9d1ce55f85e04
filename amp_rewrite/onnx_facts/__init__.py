"""Tables of facts about ONNX's operators, shared by analysis and proof."""
