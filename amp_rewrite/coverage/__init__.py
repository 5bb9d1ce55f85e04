"""Precision coverage: the part of any model that runs in half, and rules for it."""
