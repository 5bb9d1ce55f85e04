"""The inputs of runs: read from files, or synthesised from the model."""
