"""The half types, for `Options(half=...)`: the public names of `numerics.half`."""

from amp_rewrite.numerics.half import BFLOAT16, FLOAT16, Half

__all__ = ["BFLOAT16", "FLOAT16", "Half"]
