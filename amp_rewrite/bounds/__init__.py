"""Bounds of activations that hold for every input: abstract interpretation of the float32 model, pure."""
