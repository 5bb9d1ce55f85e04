"""What a user asks for, what operators are known to be, and what a target has kernels for."""
