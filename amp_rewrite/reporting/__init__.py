"""Presentation of reports: terminal, HTML report, charts and summaries."""
