"""What is run: built-in models, modules, and functions of the user. Needs PyTorch, except for `catalog`."""
