"""Report and its faces."""
