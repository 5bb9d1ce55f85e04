"""Floating-point operations of nodes, from their shapes."""
