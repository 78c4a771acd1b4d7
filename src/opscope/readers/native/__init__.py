"""The compiled reader of Kineto events (``kineto.cpp``): text in, columns out. `load_kineto` finds it."""
