"""Normalization of a float32 model before placement."""
