"""The range and precision of the half types, and rounding to them."""
