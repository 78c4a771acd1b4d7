"""How anything is timed and judged: one clock of a step, turns and intervals, the verdict on two, and what is right."""
