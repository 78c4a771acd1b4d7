"""A sweep: every configuration measured in a process of its own, then reported and compared."""
