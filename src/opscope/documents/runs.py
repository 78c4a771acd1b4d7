"""The runs in a folder: the schema ``opscope.runs/1``."""

from typing import Literal

from msgspec import Struct

from opscope.documents.findings import StepBasis


class RunRow(Struct, frozen=True, kw_only=True):
    """One configuration of a run, or one command that ran under ``opscope exec``.

    Attributes:
        folder: the run's folder.
        target: what ran.
        created: UTC, ISO 8601; empty if the run cannot be read.
        configuration: its id; null for a command.
        outcome: what bounds its step, why it failed, or how the command ended.
        step_ns: how long a step takes; null if no steps are known.
        step_basis: whether that is an unprofiled step or a recorded one.
    """

    folder: str
    target: str
    created: str
    configuration: str | None
    outcome: str
    step_ns: float | None
    step_basis: StepBasis | None = None


class RunsDocument(Struct, frozen=True, kw_only=True):
    """The runs in a folder, the oldest first."""

    schema: Literal["opscope.runs/1"] = "opscope.runs/1"
    runs: tuple[RunRow, ...]
