"""Peaks of devices: those that were measured on this machine and kept, else those of the datasheet."""

import re
from pathlib import Path
from typing import Final

import msgspec

from opscope.base.files import cache_folder
from opscope.knowledge.devices import Peaks, datasheet_peaks, device_called
from opscope.record.peaks import MeasuredPeaks

# Operations or bytes per second; a kept rate outside of these cannot have been measured.
_LEAST: Final = 1e9
_MOST: Final = 1e18


def peaks_file(device: str) -> Path:
    """Return where the peaks of a device are kept, by the name that the driver gives it."""
    return cache_folder() / "peaks" / f"{re.sub(r'[^A-Za-z0-9]+', '-', device)[:100]}.json"


def peaks_called(name: str, multiprocessors: int | None) -> Peaks | None:
    """Return the peaks of a device: measured ones, else the datasheet's; None if neither are known.

    Precisions that were not measured are the datasheet's, and so is the size of the cache, if the datasheet has it.

    Args:
        name: as the driver gives it.
        multiprocessors: how many it has; None if not recorded.
    """
    device = device_called(name, multiprocessors)
    sheet = None if device is None else datasheet_peaks(device)
    measured = _kept(name)
    # With another number of multiprocessors it is another device, or a part of one.
    if measured is None or (multiprocessors and measured.multiprocessors not in (None, multiprocessors)):
        return sheet
    return Peaks(
        device=name,
        origin=f"measured {measured.created[:10]}",
        rates={**(sheet.rates if sheet else {}), **measured.flop_per_s},
        memory_bytes_per_s=measured.memory_bytes_per_s,
        l2_bytes=(sheet.l2_bytes if sheet else None) or measured.l2_bytes,
        measured=frozenset(measured.flop_per_s),
    )


def _kept(name: str) -> MeasuredPeaks | None:
    try:
        result = msgspec.json.decode(peaks_file(name).read_bytes(), type=MeasuredPeaks)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    rates = (*result.flop_per_s.values(), result.memory_bytes_per_s)
    plausible = all(_LEAST < rate < _MOST for rate in rates)
    # Names of files are shortened, so two devices may share one: the name in the file decides.
    return result if result.device == name and plausible else None
