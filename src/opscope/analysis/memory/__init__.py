"""Memory snapshots: what was alive when most was allocated, how it came to that, and what would change it."""
