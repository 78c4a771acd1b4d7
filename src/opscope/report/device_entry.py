"""What a document says of a device and of its window."""

from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.window import Window
from opscope.documents import trace as doc


def device_entry(timeline: DeviceTimeline) -> doc.DeviceEntry:
    """Build the document's entry of a device."""
    return doc.DeviceEntry(
        device=timeline.device,
        name=timeline.name,
        activities=timeline.activities,
        sum_ns=timeline.sum_ns,
        busy_ns=timeline.busy_ns,
        window=window_entry(timeline.window),
        window_ns=timeline.window.duration_ns,
        outside_window_ns=timeline.outside_window_ns,
        idle_ns=timeline.idle_ns,
        compute_ns=timeline.compute_ns,
        exposed_communication_ns=timeline.exposed_communication_ns,
        exposed_memcpy_ns=timeline.exposed_memcpy_ns,
        idle_by_cause_ns={str(cause): length for cause, length in timeline.idle.by_cause().items() if length},
    )


def window_entry(window: Window) -> doc.WindowEntry:
    """Build the document's entry of a window."""
    return doc.WindowEntry(str(window.kind), window.start_ns, window.end_ns, window.duration_ns)
