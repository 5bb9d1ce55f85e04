"""Advice on Tensor Cores: what would run faster, and what that would cost. It changes nothing."""
