"""Runs a workload or a command under a collector, and keeps raw files and a record of them.

Each collector has a method ``collect`` that returns `Collected`. Only collectors that need PyTorch import it.
"""
