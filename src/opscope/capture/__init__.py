"""Runs a workload under a collector and writes what it saw: raw files only. Needs PyTorch."""
