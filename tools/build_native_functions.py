"""Write the operator table that opscope ships for a PyTorch release, from an unpacked wheel.

    pip download --no-deps torch==2.11.0 && python -m zipfile -e torch-*.whl unpacked
    python tools/build_native_functions.py unpacked -o src/opscope/knowledge/data

Needs PyYAML. PyTorch need not be installed: torchgen comes with the wheel.
"""

import argparse
import re
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="folder of an unpacked wheel")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the table")
    arguments = parser.parse_args()
    version = (arguments.wheel / "torch" / "version.py").read_text()
    release = re.search(r"^__version__ = '([\d.]+)", version, re.MULTILINE)
    if release is None:
        raise SystemExit("torch/version.py names no release")
    sys.path.insert(0, str(arguments.wheel))
    from opscope.collect.native_functions import listed_functions
    from opscope.knowledge.native_functions import NativeFunctionTable

    functions = tuple(listed_functions())
    path = arguments.output / f"native_functions-{release[1]}.json.gz"
    path.write_bytes(NativeFunctionTable(release[1], functions).packed())
    print(f"{path}: {len(functions)} functions, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
