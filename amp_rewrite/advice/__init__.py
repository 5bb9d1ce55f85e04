"""What would make half faster on a device."""
