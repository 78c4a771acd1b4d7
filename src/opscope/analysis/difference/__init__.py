"""What changed between two measurements: whether the step did, by how much, and which work, waiting and memory did."""
