"""Certification that a result equals the original up to precision, from the two protobufs alone.

It shares no code with analysis, planning or rewriting, and so none of their faults.
"""
