"""Runs a script as it is, finds the steps of its steady state while it runs, and profiles a few of them.

``period`` finds repetitions (pure functions), ``signals`` tells what PyTorch does, ``watcher`` decides what is
profiled, ``running`` runs the script. Nothing here imports PyTorch before the script does: environment variables
that the script sets first keep their meaning.
"""
