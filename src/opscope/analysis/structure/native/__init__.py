"""The compiled pass over nested slices (``nesting.cpp``). Where it was not built, numpy does the same, slowly."""
