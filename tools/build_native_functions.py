"""Write the operator table that opscope ships, from the installed PyTorch.

Usage: python tools/build_native_functions.py OUTPUT_DIRECTORY
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

from opscope.capture.native_functions import installed_table
from opscope.knowledge.native_functions import NativeFunctionTable


def main() -> None:
    table = installed_table("CUDA")
    # What a CPU build's dispatcher has for CUDA says nothing about a CUDA build: leave registrations out.
    functions = tuple(
        replace(function, registrations={})
        for function in table.functions
        if function.yaml_line is not None or function.name.startswith(("c10d", "_c10d", "symm_mem"))
    )
    release = re.match(r"[\d.]+", table.torch_version)
    if release is None:
        raise SystemExit(f"unexpected version of PyTorch: {table.torch_version}")
    path = Path(sys.argv[1]) / f"native_functions-{release[0]}.json.gz"
    path.write_bytes(NativeFunctionTable(release[0], functions).packed())
    print(f"{path}: {len(functions)} functions, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
