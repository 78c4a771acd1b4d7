"""Builds code for GPUs."""
