"""How much a model computes: the shapes of its values, how often its bodies run, the FLOPs of its nodes."""
