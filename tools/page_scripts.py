"""Check the page's scripts: their format with prettier, their types and imports with TypeScript; or format them.

    python tools/page_scripts.py [--check]

Both are Node programs, in the versions that tools/charts/package-lock.json pins: ``npm ci`` in tools/charts installs
them, which --check does itself where npm is there. Without npm only the length of lines is checked, and that each name
of a module's top level stands for one thing: modules are joined into one script, where it has to.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "src" / "opscope" / "report" / "page" / "assets"
CHARTS = ROOT / "tools" / "charts"
PROGRAMS = CHARTS / "node_modules" / ".bin"
_BUNDLED = "echarts.min.js"
_LONGEST = 200  # characters: a template of text that prettier does not break
_DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function\*? |class |const |let )(\w+)", re.MULTILINE)


def scripts() -> list[Path]:
    return [path for path in sorted(ASSETS.glob("*.js")) if path.name != _BUNDLED]


def long_lines() -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number} has over {_LONGEST} characters"
        for path in scripts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > _LONGEST
    ]


def declared_twice() -> list[str]:
    seen: dict[str, str] = {}
    twice = []
    for path in scripts():
        for name in _DECLARED.findall(path.read_text()):
            if name in seen:
                twice.append(f"{name} is declared in {seen[name]} and in {path.name}")
            seen[name] = path.name
    return twice


def ran(program: str, *arguments: str) -> int:
    return subprocess.run([str(PROGRAMS / program), *arguments], check=False).returncode


def main() -> None:
    check = "--check" in sys.argv
    if not (PROGRAMS / "tsc").exists() and check and shutil.which("npm"):
        subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=CHARTS, check=False)
    installed = (PROGRAMS / "tsc").exists()
    if not installed and not check:
        sys.exit("prettier is not installed: run npm ci in tools/charts")
    failed = 0
    if installed:
        style = ["--print-width", "120", "--tab-width", "4"]
        failed |= ran(
            "prettier", *style, "--log-level", "warn", "--check" if check else "--write", *map(str, scripts())
        )
        failed |= ran("tsc", "--project", str(ASSETS / "jsconfig.json"))
    else:
        sys.stderr.write("TypeScript is not installed: the types of the page's scripts are not checked\n")
    if problems := [*long_lines(), *declared_twice()]:
        sys.exit("\n".join(problems))
    sys.exit(failed)


if __name__ == "__main__":
    main()
