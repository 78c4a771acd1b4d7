"""Where the host was, as evidence of a finding."""

from typing import Final

from opscope.analysis.advice.context import Context
from opscope.analysis.advice.evidence import general, measured
from opscope.analysis.verdict.step_evidence import STACKS
from opscope.base.text import or_unknown
from opscope.documents.findings import Fact, Source, Where

_STACKS: Final = "record stacks to see the line (with_stack=True, opscope profile --with-stack)"


def seen(context: Context, where: Where) -> tuple[Fact, ...]:
    """State where the host was, or how to record that; empty where stacks were recorded or would not help."""
    places = [place for place in (where.python, where.module, where.annotation, where.operator) if place]
    if places:
        return (measured(f"the host was in {', '.join(map(or_unknown, places))}", source=Source.HOST),)
    if context.cost is STACKS or not context.runs_pytorch:
        return ()
    return (general(f"where was not recorded: {_STACKS}"),)
