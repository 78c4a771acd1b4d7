"""Profiles BERT: every option is one of ``opscope profile`` (``python3 profile_bert.py --help``)."""

import importlib.util
import os
import sys
from pathlib import Path

project = Path(__file__).resolve().parents[1]
environment = project / ".venv" / "bin" / "python"
if importlib.util.find_spec("opscope") is None and environment.exists():  # called with a Python that lacks opscope
    os.execv(environment, [str(environment), *sys.argv])

from opscope.cli import main  # noqa: E402

sys.argv[1:1] = ["profile", "bert"]
main()
