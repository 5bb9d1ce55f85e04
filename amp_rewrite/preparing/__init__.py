"""The form of a float32 model, before anything is decided."""
