"""Names the devices that a trace's header does not name: by the others that it lists, or by their size."""

from collections.abc import Sequence

from msgspec.structs import replace

from opscope.knowledge.devices import Device, device_like
from opscope.trace.model import DeviceProperties, Trace

BY_THE_OTHERS = "inferred from the other devices"
AS_GIVEN = "as --gpu says"


def with_named_devices(trace: Trace, gpu: Device | None = None) -> Trace:
    """Return the trace with the properties of every device that worked, as far as they can be told.

    Kernels may run on a device that the header does not list, and listed devices may have no name.

    Args:
        trace: the trace.
        gpu: what all devices are; None to go by the trace.
    """
    worked = [int(number) for number in trace.activities["device"].drop_nulls().unique().sort()]
    listed = {item.index: item for item in trace.devices}
    named = [_named(number, listed.get(number), trace.devices, gpu) for number in worked]
    results = {item.index: item for item in named if item is not None}
    if all(listed.get(number) == item for number, item in results.items()):
        return trace
    return replace(trace, devices=tuple((listed | results).values()))


def _has_name(device: DeviceProperties) -> bool:
    return device.name.strip() not in ("", "unknown")


def _named(
    number: int, own: DeviceProperties | None, listed: Sequence[DeviceProperties], gpu: Device | None
) -> DeviceProperties | None:
    if gpu is not None:
        return _called(gpu, own or DeviceProperties(number, ""), AS_GIVEN)
    if own is not None and _has_name(own):
        return own
    kinds = {_kind(item) for item in listed if _has_name(item)}
    if len(kinds) == 1:
        other = next(item for item in listed if _has_name(item))
        # All named devices are of one kind: so is this one, unless its own properties differ.
        if own is None or _kind(replace(own, name=other.name)) == _kind(other):
            return replace(other, index=number, uuid=None, known_by=BY_THE_OTHERS)
    # The listed devices are alike, though unnamed: an unlisted one is taken for another of them.
    if own is None and len({_kind(item) for item in listed}) == 1:
        own = replace(listed[0], index=number, uuid=None)
    if own is None:
        return None
    like = device_like(own.vendor, own.compute_capability, own.multiprocessors, own.memory_bytes)
    by_size = f"by its {own.multiprocessors} multiprocessors and its memory"
    return own if like is None else _called(like, own, by_size)


def _kind(device: DeviceProperties) -> DeviceProperties:
    """Return the properties that devices of one kind have in common."""
    return replace(device, index=0, uuid=None, memory_bytes=None)


def _called(gpu: Device, own: DeviceProperties, known_by: str) -> DeviceProperties:
    return replace(
        own,
        name=gpu.matches[0],
        compute_capability=None if gpu.vendor == "amd" else gpu.compute_capability,
        multiprocessors=gpu.multiprocessors or own.multiprocessors,
        memory_bytes=gpu.memory_bytes or own.memory_bytes,
        vendor=gpu.vendor,
        known_by=known_by,
    )
