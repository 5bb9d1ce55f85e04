"""Exact powers of two on values that leave float16's range: a value v is stored as v * 2**-e(v)."""
