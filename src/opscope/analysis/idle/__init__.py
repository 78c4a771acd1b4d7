"""When devices work and wait, and the cause of each wait."""
