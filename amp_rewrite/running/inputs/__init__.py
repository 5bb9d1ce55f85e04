"""The inputs of a run: read from files, or synthetic."""
