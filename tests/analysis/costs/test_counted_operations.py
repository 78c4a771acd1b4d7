"""Operations that Nsight Compute counted, by hand: sums, rates, metrics that contain each other, and roofs."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.knowledge.counted_operations import CountedOperations, counted_operations
from tests.command import opscope
from tests.conftest import DATA

SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on"
PATH = "sm__ops_path_tensor_src_{}"
INSTRUCTIONS = ("dadd", "dmul", "dfma", "fadd", "fmul", "ffma", "hadd", "hmul", "hfma")
OF_H100 = ("bf16_dst_fp32", "fp16", "fp64", "fp8", "int8", "tf32_dst_fp32")
OF_A100 = ("bf16_dst_fp32", "fp16_dst_fp16", "fp16_dst_fp32", "fp64", "int8", "tf32_dst_fp32")
OF_RTX_5090 = (*OF_A100, "fp8_dst_fp16", "fp8_dst_fp32", "fp4_dst_fp32")


def counts(paths: Sequence[str], **found: float) -> dict[str, float]:
    """Return every count of a device, 0 but for those given."""
    metrics = {f"{SASS.format(name)}.sum": found.get(name, 0) for name in INSTRUCTIONS}
    return metrics | {f"{PATH.format(path)}.sum": found.get(path, 0) for path in paths}


@pytest.mark.parametrize(
    ("capability", "paths", "found", "by_unit"),
    [
        ("9.0", OF_H100, {"fadd": 3, "fmul": 5, "ffma": 7}, {"fp32": 3 + 5 + 14}),
        ("9.0", OF_H100, {"dadd": 1, "dmul": 2, "dfma": 3}, {"fp64": 9}),
        ("9.0", OF_H100, {"hadd": 1, "hmul": 2, "hfma": 3}, {"fp16_vector": 2 + 4 + 12}),
        ("9.0", OF_H100, {"bf16_dst_fp32": 2**31, "ffma": 8}, {"bf16": 2**31, "fp32": 16}),
        ("9.0", OF_H100, {"fp64": 64, "tf32_dst_fp32": 32, "int8": 16, "fp8": 8},
         {"fp64_tensor": 64, "tf32": 32, "int8": 16, "fp8": 8}),
        ("8.0", OF_A100, {"fp16_dst_fp16": 100, "fp16_dst_fp32": 10}, {"fp16_acc16": 100, "fp16": 10}),
        ("12.0", OF_RTX_5090, {"fp4_dst_fp32": 5, "fp8_dst_fp32": 3}, {"fp4": 5, "fp8": 3}),
    ],
)  # fmt: skip
def test_operations_by_unit(
    capability: str, paths: Sequence[str], found: dict[str, float], by_unit: Mapping[str, float]
) -> None:
    assert counted_operations(counts(paths, **found), capability) == CountedOperations(dict(by_unit), ())


def test_rates_per_cycle_are_multiplied_by_the_cycles() -> None:
    """As ``--set roofline`` measures: some rates, and some that are multiplied by their weights already."""
    rates = {name.replace(".sum", ".sum.per_cycle_elapsed"): value for name, value in counts(OF_H100, fadd=10).items()}
    del rates[f"{SASS.format('ffma')}.sum.per_cycle_elapsed"]
    rates[f"derived__{SASS.format('ffma')}_x2"] = 40  # of 20 instructions a cycle
    # What the device could do is no count.
    rates[f"derived__{SASS.format('ffma').replace('smsp', 'sm')}_x2"] = 9e9
    rates[f"{SASS.format('fmul')}.sum.peak_sustained"] = 9e9
    clock = {"smsp__cycles_elapsed.avg.per_second": 2e9, "gpu__time_duration.sum": 1_000}  # 2,000 cycles
    assert counted_operations(rates | clock, "9.0") == CountedOperations({"fp32": 100_000}, ())
    assert counted_operations(rates | {"sm__cycles_elapsed.max": 2_000}, "9.0").by_unit == {"fp32": 100_000}
    unknown = counted_operations(rates, "9.0")
    assert not unknown.by_unit
    assert "fp32" in unknown.not_counted


@pytest.mark.parametrize(
    ("measured", "by_unit", "whole"),
    [
        # The parent counts both; its parts are not added to it.
        ({"src_fp16": 10, "op_hgmma_src_fp16": 6, "op_hmma_src_fp16_dst_fp32": 4}, {"fp16": 10}, True),
        ({"op_hgmma_src_fp16": 6, "op_hmma_src_fp16": 4}, {"fp16": 10}, True),
        ({"op_hgmma_src_fp16": 6, "op_hmma_src_fp16_dst_fp16": 3, "op_hmma_src_fp16_dst_fp32": 4},
         {"fp16": 10, "fp16_acc16": 3}, True),
        ({"src_fp16_sparsity_off": 5, "src_fp16_sparsity_on": 2}, {"fp16": 7}, True),
        # Parts of the whole: what they count is true, but it may not be all.
        ({"op_hgmma_src_fp16": 6}, {"fp16": 6}, False),
        ({"src_fp16_sparsity_off": 5}, {"fp16": 5}, False),
        ({"src_fp16_dst_fp32": 5}, {"fp16": 5}, False),
        # Products of warps with 32-bit results are in both of these, so no sum is right.
        ({"op_hmma_src_fp16": 6, "src_fp16_dst_fp32": 5}, {}, False),
    ],
)  # fmt: skip
def test_metrics_that_contain_each_other_are_not_added_up(
    measured: Mapping[str, float], by_unit: Mapping[str, float], whole: bool
) -> None:
    rest = counts([path for path in OF_H100 if path != "fp16"])
    found = counted_operations(rest | {f"sm__ops_path_tensor_{name}.sum": n for name, n in measured.items()}, "9.0")
    assert found == CountedOperations(dict(by_unit), () if whole else ("fp16",))


@pytest.mark.parametrize(
    ("capability", "metrics", "missing"),
    [
        ("9.0", {}, ("fp64", "fp32", "fp16_vector", "fp64_tensor", "tf32", "bf16", "fp16", "int8", "fp8")),
        ("9.0", counts(OF_A100), ("fp8",)),
        (None, counts(OF_A100), ("fp8",)),
        ("8.0", counts(OF_A100), ()),
        ("8.6", counts(OF_A100), ()),
        ("12.0", counts(OF_A100), ("fp8", "fp4")),
        # This device has instructions on pairs of numbers, which were not counted.
        ("10.0", counts(OF_RTX_5090), ("fp32",)),
        ("10.0", counts(OF_RTX_5090) | {f"{SASS.format(name)}.sum": 0 for name in ("fadd2", "fmul2", "ffma2")}, ()),
    ],
)
def test_units_that_were_not_counted_are_named(
    capability: str | None, metrics: Mapping[str, float], missing: tuple[str, ...]
) -> None:
    assert counted_operations(metrics, capability).not_counted == missing


def test_of_older_devices_no_sum_is_known() -> None:
    assert counted_operations(counts(OF_H100, ffma=4), "7.5").not_counted
    assert counted_operations(counts(OF_H100, ffma=4), "7.5").by_unit == {"fp32": 8}


@given(
    st.dictionaries(
        st.sampled_from(
            [*(f"{SASS.format(name)}.sum" for name in INSTRUCTIONS), *(f"{PATH.format(path)}.sum" for path in OF_H100)]
        ),
        st.integers(0, 2**50),
    ),
    st.sampled_from(["8.0", "9.0", "10.0", "12.1", "x", None]),
)
def test_counts_are_never_counted_twice_or_lost(metrics: dict[str, int], capability: str | None) -> None:
    """Each count is in the operations once, by its weight."""
    weights = dict(zip(INSTRUCTIONS, (1, 1, 2, 1, 1, 2, 2, 2, 4), strict=True))
    expected = sum(
        value * next((weight for name, weight in weights.items() if f"_{name}_" in metric), 1)
        for metric, value in metrics.items()
    )
    assert sum(counted_operations(metrics, capability).by_unit.values()) == pytest.approx(expected)


# ------------------------------------------------------------- below the roofs of a device


def table(path: Path, kernels: Sequence[tuple[str, Mapping[str, float]]], **identity: str) -> Path:
    """Write kernels as the raw page of ``ncu --csv``, in base units."""
    names = list(dict.fromkeys(name for _, metrics in kernels for name in metrics))
    heads = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "CC", *identity, *names]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(heads)
    writer.writerow(["ns" if name == "gpu__time_duration.sum" else "" for name in heads])
    for number, (kernel, metrics) in enumerate(kernels):
        own = [number, 1, kernel, "(32, 1, 1)", "(2, 1, 1)", "9.0"]
        writer.writerow([*own, *identity.values(), *(f"{metrics.get(name, 0):,.0f}" for name in names)])
    path.write_text(out.getvalue())
    return path


def moved(read: float, written: float, duration_ns: float) -> dict[str, float]:
    return {"dram__bytes_read.sum": read, "dram__bytes_write.sum": written, "gpu__time_duration.sum": duration_ns}


def test_kernels_are_placed_below_the_roofs(tmp_path: Path) -> None:
    """On an H200: 4.8 TB/s, 66.9 TFLOP/s in float32, 989.4 in bfloat16."""
    kernels = [
        ("copies()", counts(OF_H100) | moved(2_400_000, 2_400_000, 2_000)),
        ("adds()", counts(OF_H100, fadd=1_200_000) | moved(2_400_000, 2_400_000, 2_000)),
        ("multiplies()", counts(OF_H100, bf16_dst_fp32=9_894_000_000, ffma=1_000) | moved(480_000, 0, 20_000)),
    ]
    path = table(tmp_path / "c.csv", kernels, device__attribute_display_name="NVIDIA H200")
    document = json.loads(opscope("analyze", str(path), "--format", "json", cwd=tmp_path).stdout)
    rows = {row["kernel"]: row for row in document["kernels"]}
    assert document["peaks"]["name"] == "NVIDIA H200"
    assert document["not_counted"] == []
    assert rows["copies()"]["operations"] == 0
    assert (rows["copies()"]["ideal_ns"], rows["copies()"]["limited_by"]) == (pytest.approx(1_000), "memory")
    assert rows["adds()"]["operations_per_byte"] == pytest.approx(0.25)
    assert rows["adds()"]["operations_per_s"] == pytest.approx(600e9)
    assert rows["multiplies()"]["operations_by_unit"] == {"bf16": 9_894_000_000, "fp32": 2_000}
    assert rows["multiplies()"]["ideal_ns"] == pytest.approx(10_000)
    assert rows["multiplies()"]["limited_by"] == "bf16"
    # Under Nsight Compute clocks are others, so without a run there is no share.
    assert {row["share"] for row in rows.values()} == {None}
    shown = opscope("analyze", str(path), cwd=tmp_path, env={"COLUMNS": "200"}).stdout
    assert "FLOP/byte" in shown
    assert "name the run's trace as well" in shown


def test_the_share_is_of_the_time_in_the_run(tmp_path: Path) -> None:
    """`a` runs for 2,272 ns and more under Nsight Compute; what counts is how long it took in the run."""
    metrics = counts(OF_H100, ffma=100) | moved(1_000_000, 0, 99_000)
    path = table(tmp_path / "c.csv", [("a(float *)", metrics)])
    run = str(DATA / "exec" / "graph.cudarec.xz")
    document = json.loads(opscope("analyze", run, str(path), "--format", "json", cwd=tmp_path).stdout)
    (row,) = document["kernels"]
    assert row["run_ns"] is not None
    assert row["run_ns"] < 99_000
    assert row["operations_per_s"] == pytest.approx(200e9 / row["run_ns"])
    assert row["share"] == pytest.approx(row["ideal_ns"] / row["run_ns"])
    assert row["ideal_ns"] == pytest.approx(1e15 / document["peaks"]["memory_bytes_per_s"])
    other = json.loads(
        opscope("analyze", run, str(path), "--gpu", "NVIDIA A100 SXM4 80GB", "--format", "json", cwd=tmp_path).stdout
    )
    assert other["kernels"][0]["ideal_ns"] > row["ideal_ns"]


def test_part_of_the_counters_makes_no_sum(tmp_path: Path) -> None:
    """A product of matrices with only its float32 instructions counted would look like no work at all."""
    metrics = {f"{SASS.format(name)}.sum": 8.0 for name in ("fadd", "fmul", "ffma")} | moved(1_000, 0, 1_000)
    path = table(tmp_path / "c.csv", [("gemm()", metrics)], device__attribute_display_name="NVIDIA H200")
    document = json.loads(opscope("analyze", str(path), "--format", "json", cwd=tmp_path).stdout)
    (row,) = document["kernels"]
    assert row["operations_by_unit"] == {"fp32": 32}
    assert (row["operations"], row["operations_per_byte"], row["ideal_ns"]) == (None, None, None)
    assert "bf16" in document["not_counted"]
    shown = opscope("analyze", str(path), cwd=tmp_path).stdout
    assert "FLOP/byte" not in shown
    assert "were not counted for every kernel" in shown


def test_devices_that_differ_have_no_common_peaks(tmp_path: Path) -> None:
    one = [("k()", counts(OF_H100, ffma=4) | moved(100, 0, 100))]
    paths = [
        table(tmp_path / f"{name}.csv", one, device__attribute_display_name=f"NVIDIA {name}")
        for name in ("H200", "GeForce RTX 4090")
    ]
    document = json.loads(opscope("analyze", *map(str, paths), "--format", "json", cwd=tmp_path).stdout)
    assert document["peaks"] is None
    assert document["kernels"][0]["operations"] == 8
    assert document["kernels"][0]["ideal_ns"] is None
