"""What the page draws: flame graphs, slices of a timeline, live memory."""
