"""Runs a program that ends with the process that started it: ``python -m opscope.base.tethered PROGRAM``."""

import os
import signal
import sys

from opscope.base.processes import end_with_parent


def main() -> None:
    """Become the program. The system asks it to end (SIGTERM) when the process that started this one is gone."""
    end_with_parent(signal.SIGTERM)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"cannot start {sys.argv[1]}: {error.strerror or error}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
