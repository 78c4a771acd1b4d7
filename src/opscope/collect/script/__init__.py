"""Runs a script as it is, finds the steps of its steady state while it runs, and profiles a few of them.

``step_events`` finds repetitions (pure functions), ``signals`` reports what PyTorch does, ``watcher`` decides what is
profiled, and ``running`` runs the script. Nothing here imports PyTorch before the script does, so environment
variables that the script sets before its import take effect.
"""
