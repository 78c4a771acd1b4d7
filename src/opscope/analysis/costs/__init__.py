"""What work costs, beside what the device allows: sums, limits, occupancy, sizes."""
