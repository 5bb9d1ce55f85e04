"""The policy of a rewrite: the user's options, the operator lists, and the targets with their kernels."""
