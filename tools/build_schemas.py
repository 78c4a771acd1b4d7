"""Write the JSON schemas of what opscope writes, from the types themselves.

Usage: python tools/build_schemas.py OUTPUT_DIRECTORY
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import msgspec

from opscope.cli.sql import QueryResult
from opscope.documents.advise import AdviseDocument
from opscope.documents.bench import BenchDocument, ChangesDocument
from opscope.documents.build import BuildDocument, LaunchDocument, ListingDocument
from opscope.documents.comparison import RunsDocument, SweepComparison, SweepComparisons
from opscope.documents.difference import DiffDocument
from opscope.documents.explain import DossierDocument, ExplainDocument
from opscope.documents.findings import BriefDocument, ShownDocument
from opscope.documents.limits import LimitsDocument, LimitsDocuments
from opscope.documents.machine import DoctorDocument, GpusDocument
from opscope.documents.memory import MemoryDifference, MemoryDocument
from opscope.documents.page import PageDocument
from opscope.documents.ranks import RanksDifference, RanksDocument
from opscope.documents.stats import CountersDocument, Stats
from opscope.documents.trace import TraceDocument, TraceDocuments
from opscope.documents.triton_check import TritonCheckDocument
from opscope.documents.whatif import WhatIfDocument
from opscope.readers.parquet import StoreManifest
from opscope.record.capture import CaptureRecord, Execution
from opscope.record.machine import MeasuredPeaks, PeaksList
from opscope.record.sweep import Manifest

DOCUMENTS: dict[str, type] = {
    "memory-1.json": MemoryDocument,
    "memory-diff-1.json": MemoryDifference,
    "limits-1.json": LimitsDocument,
    "limits-list-1.json": LimitsDocuments,
    "peaks-1.json": MeasuredPeaks,
    "peaks-list-1.json": PeaksList,
    "analysis-1.json": TraceDocument,
    "analysis-list-1.json": TraceDocuments,
    "dossier-1.json": DossierDocument,
    "brief-1.json": BriefDocument,
    "shown-1.json": ShownDocument,
    "explain-1.json": ExplainDocument,
    "sql-1.json": QueryResult,
    "store-1.json": StoreManifest,
    "sweep-comparison-1.json": SweepComparison,
    "sweep-comparison-list-1.json": SweepComparisons,
    "sweep-1.json": Manifest,
    "capture-1.json": CaptureRecord,
    "triton-check-1.json": TritonCheckDocument,
    "gpus-1.json": GpusDocument,
    "doctor-1.json": DoctorDocument,
    "build-1.json": BuildDocument,
    "listing-1.json": ListingDocument,
    "launch-1.json": LaunchDocument,
    "bench-1.json": BenchDocument,
    "bench-diff-1.json": ChangesDocument,
    "runs-1.json": RunsDocument,
    "stats-1.json": Stats,
    "counters-1.json": CountersDocument,
    "exec-1.json": Execution,
    "diff-1.json": DiffDocument,
    "page-1.json": PageDocument,
    "whatif-1.json": WhatIfDocument,
    "advise-1.json": AdviseDocument,
    "ranks-1.json": RanksDocument,
    "ranks-diff-1.json": RanksDifference,
}


def schema_of(kind: type) -> bytes:
    """Return the JSON schema of a document type; descriptions are the types' docstrings."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **identity(kind)}
    schema.update(msgspec.json.schema(kind))
    for definition in schema["$defs"].values():
        definition["description"] = inspect.cleandoc(definition["description"])
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def identity(kind: type) -> dict[str, str]:
    """Return how a schema is told from others: by the name and version that its documents carry."""
    title = next(field.default for field in msgspec.structs.fields(kind) if field.encode_name == "schema")
    name, _, version = title.removeprefix("opscope.").partition("/")
    return {"$id": f"urn:opscope:{name}:{version}", "title": title}


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python tools/build_schemas.py FOLDER")
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, kind in DOCUMENTS.items():
        (directory / name).write_bytes(schema_of(kind))
        print(directory / name)


if __name__ == "__main__":
    main()
