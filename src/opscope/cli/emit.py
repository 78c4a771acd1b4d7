"""The one way from a command's result to standard output, in each of the formats that ``--format`` offers."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from opscope.base.parts import Stage, staged
from opscope.cli.say import show
from opscope.cli.terminal import echo_section, echo_table
from opscope.record.codec import encode
from opscope.render.blocks import Section, Table
from opscope.render.markdown import render
from opscope.render.table_formats import Format, as_csv


class Output(Struct, frozen=True, kw_only=True):
    """A result in every format. Each part is a function, and only the one that is asked for is called.

    Attributes:
        document: what JSON holds, of a schema.
        values: the table that CSV holds, with bare numbers.
        sections: what Markdown holds.
        text: prints the result for people; None prints the sections.
        brief: what ``--brief`` writes as far as there is room; None for the sections.
    """

    document: Callable[[], object]
    values: Callable[[], Table]
    sections: Callable[[], Sequence[Section]]
    text: Callable[[], None] | None = None
    brief: Callable[[], Sequence[Section]] | None = None

    @classmethod
    def of_table(cls, document: object, table: Table, title: str) -> "Output":
        """Return the output of a result that is one table.

        Args:
            document: what JSON holds.
            table: the table.
            title: its heading in Markdown.
        """
        section = Section((title,), (table,))
        return cls(
            document=lambda: document,
            values=lambda: table,
            sections=lambda: (section,),
            text=lambda: echo_table(table),
        )

    @classmethod
    def of_section(cls, document: object, values: Callable[[], Table], section: Callable[[], Section]) -> "Output":
        """Return the output of a result that people read as one section.

        Args:
            document: what JSON holds.
            values: the table for CSV.
            section: the section.
        """
        return cls(document=lambda: document, values=values, sections=lambda: (section(),))


@staged(Stage.RENDER)
def emit(output: Output, output_format: str) -> None:
    """Print a result to standard output.

    Args:
        output: the result.
        output_format: ``table``, ``json``, ``csv``, ``md`` or ``brief``.
    """
    match Format(output_format):
        case Format.JSON:
            show(encode(output.document()))
        case Format.CSV:
            show(as_csv(output.values()))
        case Format.MD:
            show("\n\n".join(render(section, level=2).rstrip("\n") for section in output.sections()))
        case Format.BRIEF:
            from opscope.render.brief import render_brief

            show(render_brief(list((output.brief or output.sections)())))
        case Format.TABLE if output.text is not None:
            output.text()
        case Format.TABLE:
            for section in output.sections():
                echo_section(section)
