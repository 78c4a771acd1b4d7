"""Blocks of a report, as Markdown, aligned text, CSV or JSON."""
