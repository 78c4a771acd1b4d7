"""Format the page's scripts with prettier, in the version that tools/charts/package-lock.json pins.

    python tools/format_scripts.py [--check]

prettier needs Node: ``npm ci`` in tools/charts installs it. With --check nothing is written; without Node only the
length of lines is checked then, as prettier leaves long strings alone.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "src" / "opscope" / "report" / "page" / "assets"
PRETTIER = ROOT / "tools" / "charts" / "node_modules" / ".bin" / "prettier"
_BUNDLED = "echarts.min.js"
_LONGEST = 200  # characters: a template of text that prettier does not break


def scripts() -> list[Path]:
    return [path for path in sorted(ASSETS.glob("*.js")) if path.name != _BUNDLED]


def main() -> None:
    check = "--check" in sys.argv
    if PRETTIER.exists():
        style = ["--print-width", "120", "--tab-width", "4"]
        command = [str(PRETTIER), *style, "--check" if check else "--write", *map(str, scripts())]
        sys.exit(subprocess.run(command, check=False).returncode)
    if not check:
        sys.exit("prettier is not installed: run npm ci in tools/charts")
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in scripts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > _LONGEST
    ]
    if long:
        sys.exit(f"lines of over {_LONGEST} characters: {', '.join(long)}")


if __name__ == "__main__":
    main()
