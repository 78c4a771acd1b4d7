"""Starts another script and waits for it: nothing of PyTorch happens here."""

import subprocess
import sys

subprocess.run([sys.executable, *sys.argv[1:]], check=True)
