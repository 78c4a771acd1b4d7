"""Nothing that a trace contains becomes markup, and tables stay tables."""

import csv
import io
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.base.text import printable
from opscope.base.units import format_bytes, format_count, format_ns, format_share, format_times
from opscope.knowledge.kernels.kernel_source import SourceResolver
from opscope.knowledge.native_functions import NativeFunctions
from opscope.lookup.explain import Lookup
from opscope.render.blocks import Bullets, Name, Paragraph, Section, Table
from opscope.render.markdown import render
from opscope.render.table_formats import as_csv, as_text
from opscope.report.kernel_report import kernel_report
from opscope.report.trace_document import build_trace_document
from opscope.trace.model import Trace
from tests.kineto import KinetoTrace


def test_sections_become_headings_and_blocks() -> None:
    table = Table(("Name", "Time"), ((Name("k<float>"), "1 ms"),), frozenset({1}))
    inner = Section(("4.1 ", "aten::addmm"), (Bullets((("a",), ("b ", Name("c")))),))
    text = render(Section(("Title",), (Paragraph.of("see ", Name("x")), table), (inner,)))
    assert text == (
        "# Title\n\nsee `x`\n\n"
        "| Name | Time |\n|---|---:|\n| `k<float>` | 1 ms |\n\n## 4.1 aten::addmm\n\n- a\n- b `c`\n"
    )


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("aten::_softmax", "# aten::_softmax"),
        ("aten::_foreach_add_", "# aten::\\_foreach_add\\_"),
        ("void f<int>(int*)", "# void f\\<int\\>(int\\*)"),
        ("a\nb", "# a b"),
        ("<script>alert(1)</script>", "# \\<script\\>alert(1)\\</script\\>"),
        ("[x](http://evil)", "# `[x](http://evil)`"),
        ("see @org/team", "# see `@org/team`"),
        ("me@example.com", "# `me@example.com`"),
        ("fixes #12", "# fixes `#12`"),
        ("GH-12, www.evil.org", "# `GH-12`, `www.evil.org`"),
        ("deadbeef1", "# `deadbeef1`"),
        ("128x64 134217728", "# 128x64 134217728"),
    ],
)
def test_headings_keep_names_readable_and_harmless(name: str, heading: str) -> None:
    assert render(Section((name,))).strip() == heading


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a|b", "| `a\\|b` |"),
        ("a`b", "| ``a`b`` |"),
        ("`a", "| `` `a `` |"),
        ("x\ty\r\nz", "| `x y  z` |"),
        ("\u202eevil", "| ` evil` |"),
        ("", "|  |"),
    ],
)
def test_names_in_tables_are_code_on_one_line(name: str, expected: str) -> None:
    assert render(Section(("t",), (Table(("n",), ((Name(name),),)),))).splitlines()[4] == expected


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_any_text_keeps_a_table_at_its_size(cells: list[str]) -> None:
    table = Table(("a", "b"), tuple((Name(cell), cell) for cell in cells))
    lines = render(Section(("t",), (table,))).splitlines()[2:]
    assert len(lines) == 2 + len(cells)
    for line in lines:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3, line


def test_what_closes_behind_a_word_is_no_part_of_its_code() -> None:
    git, cell = "70d99e998b4955e0049d13a98d77ae1b14db1f45", "https://a.b/c(d)"
    text = render(Section(("Title",), (Paragraph.of(f"2.11.0 (git {git}), {cell}, (see {cell})."),)))
    assert f"2.11.0 (git `{git}`), `{cell}`, (see `{cell}`)." in text


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=5))
def test_csv_reads_back_as_it_was(rows: list[tuple[str, str]]) -> None:
    text = as_csv(Table(("a", "b"), tuple(rows)))
    _, *read_back = csv.reader(io.StringIO(text, newline=""))
    for row, found in zip(rows, read_back, strict=True):
        for cell, cell_found in zip(map(printable, row), found, strict=True):
            # What a spreadsheet may take for a formula has an apostrophe before it.
            assert cell_found in ((cell, f"'{cell}") if cell.startswith(("=", "+", "-", "@")) else (cell,))


def test_text_tables_are_aligned_and_never_cut() -> None:
    long = "void " + "x" * 300
    text = as_text(Table(("Name", "n"), ((long, "1"), ("b", "100")), frozenset({1})))
    lines = text.splitlines()
    assert lines[0] == f"{'Name':305}    n"
    assert lines[2].startswith(long)
    assert lines[3] == f"{'b':305}  100"


def test_a_hostile_trace_gives_a_harmless_report(load: Callable[[KinetoTrace], Trace]) -> None:
    hostile = "</td><script>alert('x')</script>|`\n# not a heading\n| cell |"
    trace = KinetoTrace()
    trace.operator(hostile, 0, 10_000, **{"Input Dims": [[1]], "Input type": [hostile]})
    trace.launched_kernel(hostile, (1_000, 1_000), (3_000, 1_000))
    functions, measured = NativeFunctions.shipped(), Measured(analyze(load(trace)))
    lookup = Lookup(SourceResolver(), functions, measured=measured)
    document = build_trace_document(measured, functions, lookup=lookup, trace="t.json")
    text = render(kernel_report(document))
    assert "\n# not a heading" not in text
    outside_code = re.sub(r"(`+).*?\1", "", text)
    assert "<script>" not in outside_code.replace("\\<script\\>", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0 ns"), (999, "999 ns"), (1000, "1.000 us"), (12_345, "12.35 us"), (123_456, "123.5 us"),
        (1_000_000, "1.000 ms"), (2_500_000_000, "2.500 s"), (123_000_000_000, "123.0 s"),
    ],
)  # fmt: skip
def test_times_are_printed_in_the_unit_that_fits(value: float | None, text: str) -> None:
    assert format_ns(value) == text


def test_other_figures() -> None:
    assert [format_bytes(v) for v in (None, 0, 1023, 1024, 5 << 20, 3 << 30)] == [
        "-", "0 B", "1023 B", "1.000 KiB", "5.000 MiB", "3.000 GiB"]  # fmt: skip
    assert [format_share(p, w) for p, w in ((1, 4), (0, 5), (1, 0), (None, 1))] == ["25.0 %", "0.0 %", "-", "-"]
    assert [format_times(v) for v in (63.0, 1_234.6, 9.96, 1.5, 2.02)] == ["63", "1,235", "10", "1.5", "2"]
    assert [format_count(v) for v in (None, 0, 7, 1234.6, 0.123456)] == ["-", "0", "7", "1,235", "0.1235"]


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-x()", "@SUM(A1)", "=HYPERLINK(0)"])
def test_csv_holds_no_formulas(name: str) -> None:
    from opscope.render.blocks import Table
    from opscope.render.table_formats import as_csv

    rows = list(csv.reader(io.StringIO(as_csv(Table(("name", "ns"), ((name, "-5"), ("-", "+1.5e3")))))))
    assert rows[1:] == [[f"'{name}", "-5"], ["-", "+1.5e3"]]
