"""Collect only parts of a program, and only chosen activities: the four combinations side by side.

Usage: python examples/toggle_collection.py [--device cpu|cuda]

Every case makes two random matrices and multiplies them. The inputs are made while collection is off (except in the
last case); what is collected during the product differs.
"""

import argparse
from dataclasses import dataclass

import torch

import opscope
from opscope.record.configuration import Activity

SIZE = 1024
STEPS = 4


@dataclass(frozen=True)
class Case:
    name: str
    off_for_inputs: bool
    on_for_product: tuple[Activity, ...]


CASES = (
    Case("nothing", off_for_inputs=True, on_for_product=()),
    Case("CPU only", off_for_inputs=True, on_for_product=("cpu",)),
    Case("CUDA only", off_for_inputs=True, on_for_product=("cuda",)),
    Case("CPU and CUDA", off_for_inputs=True, on_for_product=("cpu", "cuda")),
    Case("everything", off_for_inputs=False, on_for_product=()),
)


def collect(case: Case, device: str) -> opscope.Run:
    on_gpu = device.startswith("cuda")
    both: tuple[Activity, ...] = ("cpu", "cuda") if on_gpu else ("cpu",)
    with opscope.profile(device=device, name=f"toggle {case.name}") as session:
        for _ in range(STEPS):
            if case.off_for_inputs:
                session.stop(*both)
            left, right = (torch.randn(SIZE, SIZE, device=device) for _ in range(2))
            chosen = [activity for activity in case.on_for_product if activity in both]
            if chosen:
                session.start(*chosen)
            with session.step():
                torch.relu(left @ right)
    return session.run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = parser.parse_args().device
    print(f"{'collected':14} {'operators':>9} {'activities':>10} {'device sum':>12} {'unlinked':>9}  operators seen")
    for case in CASES:
        analysis = collect(case, device).analysis
        accounting = analysis.accounting
        names = ", ".join(sorted(analysis.operators["name"].to_list())) or "-"
        activities = int(analysis.kernels["calls"].sum())
        total = f"{accounting.activities_ns / 1000:.1f} us" if activities else "-"
        calls = int(analysis.operators["calls"].sum())
        print(f"{case.name:14} {calls:9} {activities:10} {total:>12} {accounting.unlinked_activities:9}  {names}")


if __name__ == "__main__":
    main()
