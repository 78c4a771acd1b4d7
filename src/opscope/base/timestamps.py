"""Timestamps of documents and manifests."""

from datetime import UTC, datetime


def utc_timestamp(moment: datetime | None = None) -> str:
    """Return a moment (now if None) as ISO 8601 in UTC, with milliseconds.

    Runs are ordered by this text, and two runs can begin within one second: hence the milliseconds.
    """
    return (moment or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds")
