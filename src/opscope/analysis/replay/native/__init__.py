"""The compiled replay of a graph (``replay.cpp``). Where it was not built, Python does the same, slowly."""
