"""Bundle the parts of Apache ECharts that the page uses, with the licences of what is in it.

Usage: python tools/build_charts.py [--check]

Needs npm. The packages are those of tools/charts/package-lock.json, by their digests. ``--check`` builds and says
whether the bundle in the tree is the same.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "charts"
ASSETS = Path(__file__).parents[1] / "src" / "opscope" / "report" / "page" / "assets"
BUNDLE, LICENSES = ASSETS / "echarts.min.js", ASSETS / "LICENSES.txt"
FILES = {
    "Apache ECharts 6.1.0, NOTICE": "echarts/NOTICE",
    "Apache ECharts 6.1.0, LICENSE": "echarts/LICENSE",
    "d3, within Apache ECharts": "echarts/licenses/LICENSE-d3",
    "zrender 6.1.0, within the bundle": "zrender/LICENSE",
    "tslib, within the bundle": "tslib/LICENSE.txt",
}


def build(folder: Path) -> tuple[str, str]:
    """Return the bundle and the licences."""
    for name in ("package.json", "package-lock.json", "charts.js"):
        shutil.copy(SOURCE / name, folder)
    # esbuild's own program is a package of its own; no script of any package is run.
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
    command = [
        "node_modules/.bin/esbuild",
        "charts.js",
        "--bundle",
        "--minify",
        "--format=iife",
        "--legal-comments=none",
    ]
    options = [
        "--global-name=echarts",
        "--target=es2020",
        "--charset=utf8",
        '--define:process.env.NODE_ENV="production"',
    ]
    bundle = subprocess.run([*command, *options], cwd=folder, check=True, capture_output=True, text=True).stdout
    modules = folder / "node_modules"
    licenses = "\n\n".join(
        f"{'=' * 80}\n{title}\n{'=' * 80}\n\n{(modules / name).read_text(encoding='utf-8').strip()}"
        for title, name in FILES.items()
    )
    return bundle, f"What this page draws its charts with is free software.\n\n{licenses}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is in the tree, and write nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        bundle, licenses = build(Path(folder))
    if check:
        same = (BUNDLE.read_text(encoding="utf-8"), LICENSES.read_text(encoding="utf-8")) == (bundle, licenses)
        print("the bundle is what its script makes" if same else "the bundle is not what its script makes")
        return 0 if same else 1
    BUNDLE.write_text(bundle, encoding="utf-8")
    LICENSES.write_text(licenses, encoding="utf-8")
    print(f"{BUNDLE}: {len(bundle):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
