"""When something was made, as documents and manifests say it."""

from datetime import UTC, datetime


def utc_timestamp(moment: datetime | None = None) -> str:
    """Return a moment, by default now, as ISO 8601 in UTC.

    Two runs can begin within one second, and the order of runs is read from this: hence milliseconds.
    """
    return (moment or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds")
