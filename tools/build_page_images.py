"""Photograph the page of recorded runs: docs/images/page-light.png and page-dark.png. Needs Chromium.

python tools/build_page_images.py docs/images
"""

import argparse
import base64
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.browser import chromium, opened  # noqa: E402

DATA = Path("tests", "data")  # relative, so that no picture names a folder of this machine
GPT2 = DATA / "traces" / "gpt2_train_amp_stacks.json.gz"
WIDTH = 1240  # of one view, in CSS pixels
VIEWS = ("overview", "timeline", "flame", "roofline")
TILES = """<style>body {{ margin: 0; display: grid; grid-template-columns: repeat(2, {width}px); gap: 24px;
background: {background}; width: {whole}px }} img {{ width: {width}px; display: block }}</style>{images}"""


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, "-P", "-m", "opscope", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def tiled(browser: Any, shots: list[bytes], background: str, path: Path) -> None:
    """Put pictures side by side, two in a row, at half their size."""
    width = WIDTH // 2 + 160
    images = "".join(f'<img src="data:image/png;base64,{base64.b64encode(shot).decode()}">' for shot in shots)
    page = browser.new_page(viewport={"width": 2 * width + 24, "height": 100})
    page.set_content(TILES.format(width=width, whole=2 * width + 24, background=background, images=images))
    page.screenshot(path=path, full_page=True)
    page.close()
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, chromium() as browser:
        one, sweep, diff = (Path(made) / f"{name}.html" for name in ("one", "sweep", "diff"))
        run("page", str(GPT2), "--title", "GPT-2, training step", "-o", str(one))
        run("page", str(DATA / "h200_bert_small"), "-o", str(sweep))
        changes = DATA / "changes"
        run("diff", str(changes / "before"), str(changes / "tf32"), "--page", str(diff))
        light = []
        with opened(browser, one, width=WIDTH, scheme="light") as page:
            for view in VIEWS:
                page.show(view)
                page.page.wait_for_timeout(500)
                light.append(page.page.screenshot())
        dark = []
        for path, view in ((sweep, "sweep"), (diff, "diff")):
            with opened(browser, path, width=WIDTH, scheme="dark") as page:
                page.show(view)
                page.page.wait_for_timeout(500)
                dark.append(page.page.screenshot())
        tiled(browser, light, "#fff", given.folder / "page-light.png")
        tiled(browser, dark, "#15191d", given.folder / "page-dark.png")


if __name__ == "__main__":
    main()
