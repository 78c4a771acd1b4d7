"""Tables are built of columns that know their heading and their content."""

from dataclasses import dataclass

from opscope.render.blocks import Name, Table
from opscope.render.table_formats import Column, field_values, table_of


@dataclass(frozen=True)
class Kernel:
    name: str
    calls: int | None


COLUMNS = (
    Column[Kernel]("Kernel", lambda kernel: Name(kernel.name)),
    Column[Kernel]("Calls", lambda kernel: "-" if kernel.calls is None else f"{kernel.calls:,}", numeric=True),
    Column[Kernel]("Length", lambda kernel: str(len(kernel.name)), numeric=True, optional=True),
)


def test_a_table_follows_its_columns() -> None:
    kernels = (Kernel("gemm", 1200), Kernel("copy", None))
    expected = Table(
        columns=("Kernel", "Calls", "Length"),
        rows=(("gemm", "1,200", "4"), ("copy", "-", "4")),
        numeric=frozenset({1, 2}),
        optional=frozenset({2}),
    )
    assert table_of(COLUMNS, kernels) == expected


def test_a_table_without_rows_keeps_its_headings() -> None:
    table = table_of(COLUMNS, ())
    assert (table.columns, table.rows) == (("Kernel", "Calls", "Length"), ())


def test_columns_that_move_keep_what_they_are() -> None:
    table = table_of(COLUMNS[::-1], (Kernel("gemm", 3),))
    assert (table.rows, table.numeric, table.optional) == ((("4", "3", "gemm"),), {0, 1}, {0})


def test_fields_for_programs_are_bare_and_empty_where_unknown() -> None:
    assert field_values(Kernel("gemm", 1200), ("calls", "name")) == ("1200", "gemm")
    assert field_values(Kernel("gemm", None), ("calls",)) == ("",)
