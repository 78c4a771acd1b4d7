"""Write the table of rules into docs/findings.md, from what each rule says of itself.

    python tools/build_rules.py [--check]

The table stands between the two markers. With --check nothing is written; the exit code is 1 if it is out of date.
"""

import sys
from pathlib import Path

from opscope.analysis.advice.advised import STATEMENTS
from opscope.analysis.advice.on_cpu import CPU_STATEMENTS as ON_CPU
from opscope.distributed.findings import JOB_STATEMENTS
from opscope.documents.findings import Rule

DOCUMENT = Path(__file__).parents[1] / "docs" / "findings.md"
BEGIN, END = "<!-- rules: written by tools/build_rules.py -->\n", "<!-- end of rules -->\n"


def table() -> str:
    """Return the table as Markdown."""
    head = "| rule | fires on | saves (low to high) | says nothing where |\n|---|---|---|---|\n"
    rows = (
        f"| `{one.rule}` | {one.fires_on} | {one.saves} | {one.silent_where or '-'} |\n"
        for one in sorted([*STATEMENTS, *JOB_STATEMENTS, *ON_CPU], key=lambda one: list(Rule).index(one.rule))
    )
    return head + "".join(rows)


def written(text: str) -> str:
    """Return the document with the table as it is today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    if "--check" in sys.argv:
        sys.exit(text != written(text))
    DOCUMENT.write_text(written(text))
