"""Traces for other tools: Chrome's format, and SQL."""
