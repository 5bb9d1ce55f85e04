"""What onnxruntime executes of a model on a provider, after its own optimisation."""
