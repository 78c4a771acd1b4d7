"""Run directories: what they hold, how raw files become documents, and where runs are kept."""
