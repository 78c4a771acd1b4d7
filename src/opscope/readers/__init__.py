"""Trace files -> `Trace`: one module per format (``formats.py`` tells them apart)."""
