"""The way back: a model with half values in float32."""
