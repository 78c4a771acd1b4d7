"""What is known about the most expensive operators of a trace: the schema ``opscope.dossier/1``."""

from typing import Literal

from msgspec import Struct

from opscope.documents.explain import ExplainDocument
from opscope.documents.findings import Finding
from opscope.documents.statements import OperatorStatements
from opscope.documents.trust import Check


class Dossier(Struct, frozen=True):
    """One operator: its explanation, as from ``opscope explain``, and the statements on it."""

    explanation: ExplainDocument
    findings: OperatorStatements


class DossierDocument(Struct, frozen=True, kw_only=True):
    """The most expensive operators of a trace, and the trust checks that it fails.

    Attributes:
        trace: its file.
        bound: what bounds its steps, in a sentence.
        actions: what could make a step faster, the largest likely saving first.
        operators: the most expensive ones.
        failed_checks: the trust checks that the trace fails.
    """

    schema: Literal["opscope.dossier/1"] = "opscope.dossier/1"
    trace: str
    bound: str
    operators: tuple[Dossier, ...]
    failed_checks: tuple[Check, ...] = ()
    actions: tuple[Finding, ...] = ()
