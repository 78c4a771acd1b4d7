"""``python -m opscope``: the same command line, for a source tree that is not installed."""

import os
import sys


def _leave_folder() -> None:
    """Take the current folder off the module path, where ``-m`` has put it: it may hold anyone's files.

    A source tree that opscope itself is imported from stays.
    """
    # Only what the interpreter's start has imported is used up to here.
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return
    if not sys.flags.safe_path and sys.path[:1] == [here] and here != own:
        del sys.path[0]


if __name__ == "__main__":
    _leave_folder()
    from opscope.cli import main

    main()
