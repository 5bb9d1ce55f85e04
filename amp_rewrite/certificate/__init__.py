"""Whether a result is the original but for precision: proved from the two protobufs alone.

Nothing here is shared with what analyses, plans or edits, so that it cannot share their faults.
"""
