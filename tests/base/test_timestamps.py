"""When something was made: the order of runs is read from it."""

from datetime import UTC, datetime, timedelta, timezone

from opscope.base.units import utc_timestamp


def test_two_moments_of_one_second_are_in_order() -> None:
    first = datetime(2026, 11, 24, 5, 20, 7, 100_000, tzinfo=UTC)
    assert utc_timestamp(first) == "2026-11-24T05:20:07.100+00:00"
    assert utc_timestamp(first) < utc_timestamp(first + timedelta(milliseconds=300))


def test_another_zone_is_converted() -> None:
    moment = datetime(2026, 11, 24, 7, 20, 7, tzinfo=timezone(timedelta(hours=2)))
    assert utc_timestamp(moment) == "2026-11-24T05:20:07.000+00:00"


def test_the_moment_is_now_by_default() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert before <= datetime.fromisoformat(utc_timestamp()) <= datetime.now(UTC)
