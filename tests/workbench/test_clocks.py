"""GPU clocks from nvidia-smi's lines."""

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opscope.workbench.benchmarking.instruments import summarise_clocks  # noqa: E402


def test_samples_are_summarised_and_unreadable_lines_left_out() -> None:
    # sm, memory and highest sm clock in MHz; temperature; power; reasons for lower clocks as a bit mask.
    lines = [
        "1980, 3201, 1980, 40, 300.5, 0x0000000000000000",
        "1200, 3201, 1980, 47, 650.0, 0x0000000000000004",
        "1500, 3201, 1980, 45, [N/A], 0x0000000000000000",
        "1500, 3201, 1980, 45, 500.0, 0x0000000000000021",
        "",
    ]
    clocks = summarise_clocks(lines)
    assert clocks is not None
    assert (clocks.samples, clocks.sm_mhz_min, clocks.sm_mhz_median, clocks.sm_mhz_max) == (3, 1200, 1500, 1980)
    assert (clocks.sm_mhz_limit, clocks.memory_mhz, clocks.temperature_c, clocks.power_w) == (1980, 3201, 47, 500.0)
    assert clocks.limited_by == ("power cap", "thermal slowdown (software)")  # idling (0x1) limits nothing


def test_no_readable_line_is_no_sample() -> None:
    assert summarise_clocks(["", "Unable to determine the device handle"]) is None
