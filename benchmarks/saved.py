"""What every saved result says of where it was measured."""

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch


def save(path: Path, **results: Any) -> None:
    """Write results with the date, the device and the versions."""
    about = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
    }
    path.write_text(json.dumps({**about, **results}, indent=1) + "\n")
