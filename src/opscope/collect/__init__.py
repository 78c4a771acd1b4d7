"""Runs a workload or a command under a collector, and keeps what it saw: raw files and a record of them.

Each collector has a method ``collect`` that returns `Collected`. PyTorch is imported only by those that need it.
"""
