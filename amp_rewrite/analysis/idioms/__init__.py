"""Idioms: operators that a model spells out in several nodes, decided as the one operator that they spell."""
