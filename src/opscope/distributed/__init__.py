"""The traces of one job: a summary per rank, then clocks, collectives and late ranks over all of them."""
