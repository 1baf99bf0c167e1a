"""Run the command line as ``python -m tracekit``."""

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first on the path: a scipy.py there would run as SciPy.
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]

    from tracekit.cli import main

    main()
