"""Analysis of a model before any decision: units, and the evidence that pins them to float32."""
