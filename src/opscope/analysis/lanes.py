"""Which slices of a track can be drawn below each other: viewers show only slices that nest."""

import numpy as np

from opscope.analysis.nesting import Ints


def lanes_of(track: Ints, start: Ints, end: Ints) -> Ints:
    """Return a lane (from 0) per slice, such that the slices of a track and lane nest or do not touch.

    Each slice goes to the first lane of its track in which it fits; earlier and longer slices choose first. Viewers
    drop a slice that overlaps another without nesting.
    """
    lanes = np.zeros(len(track), np.int64)
    open_ends: dict[int, list[list[int]]] = {}  # per track and lane: the ends of the slices that are still open
    order = np.lexsort((-end, start, track))
    for row, number, begin, last in zip(
        order.tolist(), track[order].tolist(), start[order].tolist(), end[order].tolist(), strict=True
    ):
        stacks = open_ends.setdefault(number, [])
        for lane, stack in enumerate(stacks):
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or stack[-1] >= last:
                stack.append(last)
                lanes[row] = lane
                break
        else:
            lanes[row] = len(stacks)
            stacks.append([last])
    return lanes
