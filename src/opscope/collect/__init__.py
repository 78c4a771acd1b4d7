"""Runs a workload or a command under a collector, and keeps what it saw: raw files and a record of them.

Each collector implements `opscope.collect.collector.Collector`. PyTorch is imported only by those that need it.
"""
