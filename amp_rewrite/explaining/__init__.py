"""Explanations of a model's decisions, and the changes that would alter them."""
