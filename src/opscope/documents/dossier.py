"""What is known of the most expensive operators of a trace: the schema ``opscope.dossier/1``."""

from dataclasses import dataclass
from typing import Literal

from opscope.documents.explain import ExplainDocument
from opscope.documents.statements import Findings
from opscope.documents.trust import Check


@dataclass(frozen=True, slots=True)
class Dossier:
    """One operator: what ``opscope explain`` says of it, and what its shapes, launches and counters say."""

    explanation: ExplainDocument
    findings: Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class DossierDocument:
    """The most expensive operators of a trace, what bounds its steps, and the trust checks that the trace fails."""

    schema: Literal["opscope.dossier/1"] = "opscope.dossier/1"
    trace: str
    bound: str
    operators: tuple[Dossier, ...]
    failed_checks: tuple[Check, ...] = ()
