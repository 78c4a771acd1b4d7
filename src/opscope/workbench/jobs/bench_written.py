"""Makes the document of a benchmark from its results."""

from collections.abc import Sequence

import torch

from opscope.base.units import utc_timestamp
from opscope.collect.environment import describe_framework, describe_machine
from opscope.documents.bench import BenchDocument, BenchResult
from opscope.record.bench import BenchRequest
from opscope.workbench.benchmarking.verdicts import compare, pairs_of
from opscope.workbench.gallery.cases import TIMERS


def bench_document_of(
    results: Sequence[BenchResult], device: torch.device, request: BenchRequest | None = None
) -> BenchDocument:
    """Compare the results of one process, and describe where they were measured.

    Args:
        results: of all cases and parameters.
        device: where they were measured.
        request: what was asked for, so that it can be measured again; None if no command asked.
    """
    # Ways of timing one function are not variants of each other, so they are not compared.
    return BenchDocument(
        created=utc_timestamp(),
        machine=describe_machine(device),
        framework=describe_framework(device),
        processes=1,
        results=tuple(results),
        comparisons=compare(pairs_of([result for result in results if result.case != TIMERS])),
        request=request,
    )
