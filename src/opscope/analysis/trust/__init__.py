"""Whether the figures of a trace can be believed."""
