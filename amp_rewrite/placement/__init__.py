"""Measurement of the nodes that onnxruntime executes on a provider, after its own optimisation."""
