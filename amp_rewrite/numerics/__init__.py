"""What half types hold, and how numbers are rounded to them."""
