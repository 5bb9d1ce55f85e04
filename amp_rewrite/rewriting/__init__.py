"""The edit that a painting implies: its plan, application, Cast cleanup, annotations and result checks."""
