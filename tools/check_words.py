"""Count words and names that an English-speaking engineer would not use; their rate may only fall.

A rate is a count per 1,000 lines of the package and the documents. Run with ``--worst`` to see where most of them are.
"""

import argparse
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
# The rate that was reached last; lower it with each change that lowers the rate. The goal is 8.
CEILING: Final = 7.2
_PHRASES: Final = (
    r"\b(?:the )?dearest\b",
    r"\b(?:is|are|was|were|be) no\b(?! (?:longer|more|matter))",
    r"\bof it\b",
    r"\btold\b",
    r"\bnobody\b",
    r"\bas (?:it|they) (?:is|are|stands|stand)\b",
    r"\bsays? whether\b",
    r"\bfor want of\b",
    r"\bgone on from\b",
    r"\bbe (?:had|looked) (?:from|into)\b",
)
_NAMES: Final = frozenset(("found", "said", "told", "given", "mine", "what"))
_PATTERN: Final = re.compile("|".join(_PHRASES), re.IGNORECASE)


def files() -> Iterator[Path]:
    """Yield the files that are read: the package's code and the documents."""
    yield from sorted((ROOT / "src").rglob("*.py"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))


def words_of(path: Path) -> Counter[str]:
    """Return what a file has of them, by the word or the name."""
    text = path.read_text(encoding="utf-8")
    counted = Counter(match.group().lower() for match in _PATTERN.finditer(text))
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        counted += Counter(
            f"{one.string} (a name)" for one in tokens if one.type == tokenize.NAME and one.string in _NAMES
        )
    return counted


def main() -> int:
    """Compare the rate with the ceiling; return 1 where it is higher."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worst", type=int, metavar="N", help="print the N files and words that count most")
    worst = parser.parse_args().worst
    by_file = {path: words_of(path) for path in files()}
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in by_file)
    count = sum(map(Counter.total, by_file.values()))
    rate = 1_000 * count / lines
    if worst:
        for path, words in sorted(by_file.items(), key=lambda item: -item[1].total())[:worst]:
            print(f"{words.total():5} {path.relative_to(ROOT)}")
        for word, times in sum(by_file.values(), Counter()).most_common(worst):
            print(f"{times:5} {word}")
    print(f"{count:,} words in {lines:,} lines: {rate:.1f} per 1,000; at most {CEILING} are allowed")
    return int(round(rate, 1) > CEILING)


if __name__ == "__main__":
    sys.exit(main())
