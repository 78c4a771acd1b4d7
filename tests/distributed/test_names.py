"""Which rank a trace is of, by its name where its header does not say it."""

from __future__ import annotations

import pytest

from opscope.distributed.summary import RankFacts


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank12.json.gz", 12),
        ("job/rank3/trace.json", 3),
        ("1764131213.5-TP-3.trace.json.gz", 3),
        ("1764131213.5-TP-3-DP-1.trace.json.gz", None),  # how many there are of each is unknown
        ("dp0_pp0_tp1_dcp0_ep1_rank1.1764131213.pt.trace.json.gz", 1),
        ("host-TP-2-rank5.json", 5),
        ("HTTP-3.json", None),
        ("trace.json", None),
    ],
)
def test_the_rank_by_a_name(path: str, rank: int | None) -> None:
    assert RankFacts(path=path).number == rank


def test_the_header_comes_first() -> None:
    assert RankFacts(path="rank3.json", rank=4).number == 4
