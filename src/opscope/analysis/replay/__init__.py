"""Steps as graphs of moments: what waits for what, replayed with other durations (see ``graph.py``)."""
