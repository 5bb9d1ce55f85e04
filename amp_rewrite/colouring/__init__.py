"""What is decided for each unit: its kind, then its colour by rules."""
