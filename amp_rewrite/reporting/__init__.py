"""Presentation of reports: terminal, HTML report and summaries."""
