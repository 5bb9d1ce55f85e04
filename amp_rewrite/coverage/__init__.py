"""How much of any model runs in half, and rules for it."""
