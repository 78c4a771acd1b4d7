"""Benchmarks that are examples: each module has a function ``case`` that returns what is compared."""
