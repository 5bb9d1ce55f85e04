"""The form of a model in float32, before anything is decided."""
