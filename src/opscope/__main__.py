"""``python -m opscope``: the same command line, for a source tree that is not installed."""

from opscope.cli import main

if __name__ == "__main__":
    main()
