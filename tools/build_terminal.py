"""Draw what commands print on terminals of several widths: docs/images/terminal-WIDTH.svg.

    python tools/build_terminal.py docs/images

Each command runs on a terminal of its own of that width, and its output is drawn as it came, colours included.
"""

import argparse
import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "tests" / "data" / "traces" / "gpt2_train_amp_stacks.json.gz"
COMMAND = ("analyze", "train.json.gz", "--top", "8")
WIDTHS = (80, 100, 160)
# Without the fonts that rich would load from elsewhere, and without a window around the text.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}</style>
<defs>{lines}</defs>
<rect fill="#292929" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def printed(arguments: tuple[str, ...], folder: Path, width: int) -> str:
    """Run a command on a terminal of a width, and return what it printed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    unwanted = ("NO_COLOR", "COLUMNS", "LINES")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "opscope", *arguments], cwd=folder, env=environment, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # Linux says so when the other side was closed
        pass
    if process.wait():
        raise SystemExit(b"".join(parts).decode())
    return b"".join(parts).decode().replace("\r\n", "\n")


def drawn(text: str, arguments: tuple[str, ...], width: int) -> str:
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=width, file=nowhere)
        console.print(Text(f"$ opscope {' '.join(arguments)}", style="bold"))
        console.print(Text.from_ansi(text), soft_wrap=False)
        return console.export_svg(code_format=FORMAT, unique_id=f"w{width}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(TRACE, Path(folder) / "train.json.gz")
        for width in WIDTHS:
            path = given.folder / f"terminal-{width}.svg"
            path.write_text(drawn(printed(COMMAND, Path(folder), width), COMMAND, width))
            print(path)


if __name__ == "__main__":
    main()
