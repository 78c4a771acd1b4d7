"""Checks whether everything works on this machine: `ask` tries it, `diagnose` draws the conclusions."""
