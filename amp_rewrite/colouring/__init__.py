"""Decisions for each unit: its kind, then its colour by rules."""
