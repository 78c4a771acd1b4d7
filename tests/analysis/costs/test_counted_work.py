"""What Nsight Compute counted, by hand: operations as sums and rates, metrics that contain each other, bytes, roofs."""

import csv
import io
import json
import lzma
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.knowledge.counted_work import WORK_METRICS, counted_bytes, counted_operations, fastest_rate
from tests.command import opscope
from tests.conftest import DATA

SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on"
PATH = "sm__ops_path_tensor_src_{}"
INSTRUCTIONS = ("dadd", "dmul", "dfma", "fadd", "fmul", "ffma", "hadd", "hmul", "hfma")
ON_SEVERAL = ("fadd2", "fmul2", "ffma2", "qadd4", "qmul4", "qfma4")
# What NVIDIA's metric library lists for chips of these compute capabilities.
AMPERE = ("bf16_dst_fp32", "fp16_dst_fp16", "fp16_dst_fp32", "fp64", "int1", "int4", "int8", "tf32_dst_fp32")
BLACKWELL = ("bf16_dst_fp32", "fp16_dst_fp16", "fp16_dst_fp32", "fp4_dst_fp32", "fp64", "int8", "tf32_dst_fp32")
OF_H100 = ("bf16_dst_fp32", "fp16", "fp64", "fp8", "int1", "int8", "tf32_dst_fp32")
DEVICES = {
    "8.0": AMPERE,
    "8.6": AMPERE,
    "8.9": (*AMPERE, "fp8"),
    "9.0": OF_H100,
    "10.0": (*BLACKWELL, "fp4_fp6_fp8_dst_fp16", "fp4_fp6_fp8_dst_fp32"),
    "12.0": (*BLACKWELL, "fp4_fp6_dst_fp16", "fp4_fp6_dst_fp32", "fp8_dst_fp16", "fp8_dst_fp32"),
}


def counts(paths: Sequence[str], *more: str, **found: float) -> dict[str, float]:
    """Return every count of a device, 0 but for those given."""
    metrics = {f"{SASS.format(name)}.sum": found.get(name, 0) for name in (*INSTRUCTIONS, *more)}
    return metrics | {f"{PATH.format(path)}.sum": found.get(path, 0) for path in paths}


def of_device(capability: str, **found: float) -> dict[str, float]:
    return counts(DEVICES[capability], *(ON_SEVERAL if capability == "10.0" else ()), **found)


@pytest.mark.parametrize(
    ("capability", "found", "by_unit"),
    [
        ("9.0", {}, {}),
        ("9.0", {"fadd": 3, "fmul": 5, "ffma": 7}, {"fp32": 3 + 5 + 14}),
        ("9.0", {"dadd": 1, "dmul": 2, "dfma": 3}, {"fp64": 9}),
        ("9.0", {"hadd": 1, "hmul": 2, "hfma": 3}, {"fp16_vector": 2 + 4 + 12}),
        ("9.0", {"bf16_dst_fp32": 2**31, "ffma": 8}, {"bf16": 2**31, "fp32": 16}),
        ("9.0", {"fp64": 64, "tf32_dst_fp32": 32, "int8": 16, "fp8": 8, "int1": 4},
         {"fp64_tensor": 64, "tf32": 32, "int8": 16, "fp8": 8, "int1": 4}),
        ("8.0", {"fp16_dst_fp16": 100, "fp16_dst_fp32": 10, "int4": 1}, {"fp16_acc16": 100, "fp16": 10, "int4": 1}),
        ("8.6", {"fp64": 1}, {"fp64_tensor": 1}),
        ("8.9", {"fp8": 7}, {"fp8": 7}),
        ("10.0", {"fp4_fp6_fp8_dst_fp32": 5, "fp4_fp6_fp8_dst_fp16": 2, "fp4_dst_fp32": 3},
         {"fp8": 5, "fp8_acc16": 2, "fp4": 3}),
        ("10.0", {"fadd2": 1, "fmul2": 10, "ffma2": 100, "qadd4": 1, "qmul4": 10, "qfma4": 100},
         {"fp32": 2 + 20 + 400, "fp8_vector": 4 + 40 + 800}),
        ("12.0", {"fp4_dst_fp32": 5, "fp8_dst_fp32": 3, "fp4_fp6_dst_fp32": 9}, {"fp4": 5, "fp8": 3, "fp6": 9}),
    ],
)  # fmt: skip
def test_operations_by_unit(capability: str, found: dict[str, float], by_unit: Mapping[str, float]) -> None:
    work = counted_operations(of_device(capability, **found), capability)
    assert (work.by_unit, work.not_counted, work.any_counted, work.sparse) == (by_unit, (), True, False)


def test_half_precision_instructions_are_in_no_total() -> None:
    """They also convert numbers and set constants."""
    assert counted_operations(of_device("9.0", hfma=100, ffma=1), "9.0").total == 2


def rates(found: Mapping[str, float]) -> dict[str, float]:
    return {name.replace(".sum", ".sum.per_cycle_elapsed"): value for name, value in found.items()}


@pytest.mark.parametrize(
    "clock",
    [
        {"smsp__cycles_elapsed.avg.per_second": 2e9, "gpu__time_duration.sum": 1_000},
        {"sm__cycles_elapsed.avg.per_second": 2e9, "gpu__time_duration.sum": 1_000},
        {"sm__cycles_elapsed.max": 2_000},
        {"smsp__cycles_elapsed.avg": 2_000, "sm__cycles_elapsed.max": 9_999},
        {"smsp__cycles_elapsed.avg": 0, "sm__cycles_elapsed.avg.per_second": 2e9, "gpu__time_duration.sum": 1_000},
    ],
)
def test_rates_per_cycle_are_multiplied_by_the_cycles(clock: Mapping[str, float]) -> None:
    """As ``--set roofline`` measures: some rates, and some that are multiplied by their weights already."""
    measured = rates(of_device("9.0", fadd=10, bf16_dst_fp32=7))
    del measured[f"{SASS.format('ffma')}.sum.per_cycle_elapsed"]
    measured[f"derived__{SASS.format('ffma')}_x2"] = 40  # of 20 instructions a cycle
    # What the device could do is not a count.
    measured[f"derived__{SASS.format('ffma').replace('smsp', 'sm')}_x2"] = 9e9
    measured[f"{SASS.format('fmul')}.sum.peak_sustained"] = 9e9
    work = counted_operations(measured | clock, "9.0")
    assert (work.by_unit, work.not_counted) == ({"fp32": 100_000, "bf16": 14_000}, ())
    assert not counted_operations(measured, "9.0").by_unit
    # A count is more exact than a rate, which is printed with few digits.
    both = counted_operations({f"{SASS.format('fadd')}.sum": 19_999} | measured | clock, "9.0")
    assert both.by_unit["fp32"] == 99_999
    both = counted_operations(measured | clock | {f"{SASS.format('fadd')}.sum": 19_999}, "9.0")
    assert both.by_unit["fp32"] == 99_999


@pytest.mark.parametrize(
    ("measured", "by_unit", "whole"),
    [
        # The parent counts both; its parts are not added to it.
        ({"src_fp16": 10, "op_hgmma_src_fp16": 6, "op_hmma_src_fp16_dst_fp32": 4}, {"fp16": 10}, True),
        ({"op_hgmma_src_fp16": 6, "op_hmma_src_fp16": 4}, {"fp16": 10}, True),
        ({"op_hgmma_src_fp16": 6, "op_hmma_src_fp16_dst_fp16": 3, "op_hmma_src_fp16_dst_fp32": 4},
         {"fp16": 10, "fp16_acc16": 3}, True),
        ({"src_fp16_sparsity_off": 5, "src_fp16_sparsity_on": 0}, {"fp16": 5}, True),
        ({"op_hgmma_src_fp16_sparsity_off": 5, "op_hgmma_src_fp16_sparsity_on": 0, "op_hmma_src_fp16": 1},
         {"fp16": 6}, True),
        # Parts of the whole: what they count is true, but it may not be all.
        ({"op_hgmma_src_fp16": 6}, {"fp16": 6}, False),
        ({"src_fp16_sparsity_off": 5}, {"fp16": 5}, False),
        ({"src_fp16_dst_fp32": 5}, {"fp16": 5}, False),
        ({"op_hgmma_src_fp16": 6, "op_hmma_src_fp16_dst_fp32": 4}, {"fp16": 10}, False),
        ({"op_hgmma_src_fp16_sparsity_off": 6, "op_hmma_src_fp16_sparsity_on": 0}, {"fp16": 6}, False),
        ({"src_fp16_dst_fp16": 1, "src_fp16_dst_fp32_sparsity_off": 2}, {"fp16_acc16": 1, "fp16": 2}, False),
        # Products of warps with 32-bit results are in both of these, so no sum is right.
        ({"op_hmma_src_fp16": 6, "src_fp16_dst_fp32": 5}, {}, False),
    ],
)  # fmt: skip
def test_metrics_that_contain_each_other_are_not_added_up(
    measured: Mapping[str, float], by_unit: Mapping[str, float], whole: bool
) -> None:
    rest = counts([path for path in OF_H100 if path != "fp16"])
    found = counted_operations(rest | {f"sm__ops_path_tensor_{name}.sum": n for name, n in measured.items()}, "9.0")
    assert (found.by_unit, found.not_counted) == (by_unit, () if whole else ("Tensor Cores on fp16",))


def test_instructions_of_warps_and_of_groups_of_warps_are_all_there_are() -> None:
    for operands, pair in (("int8", ("imma", "igmma")), ("int1", ("bmma", "bgmma"))):
        rest = counts([path for path in OF_H100 if path != operands])
        parts = {f"sm__ops_path_tensor_op_{op}_src_{operands}.sum": 4 for op in pair}
        assert counted_operations(rest | parts, "9.0").not_counted == ()
        assert counted_operations(rest | parts, "9.0").by_unit == {operands: 8}


def test_one_kind_of_result_has_one_spelling() -> None:
    rest = counts([path for path in OF_H100 if path != "bf16_dst_fp32"])
    parts = {f"sm__ops_path_tensor_op_{op}_src_bf16_dst_fp32.sum": 4 for op in ("hmma", "hgmma")}
    assert counted_operations(rest | parts, "9.0").by_unit == {"bf16": 8}
    assert counted_operations(rest | parts, "9.0").not_counted == ()


def test_sparse_products_are_told() -> None:
    rest = counts([path for path in OF_H100 if path != "fp8"])
    metrics = {f"{PATH.format('fp8')}_sparsity_{which}.sum": count for which, count in (("on", 3), ("off", 4))}
    assert counted_operations(rest | metrics, "9.0").sparse
    # Also where the sum over both is in the table too.
    assert counted_operations(rest | metrics | {f"{PATH.format('fp8')}.sum": 7}, "9.0").sparse
    assert not counted_operations(of_device("9.0", fp8=7), "9.0").sparse


@pytest.mark.parametrize(
    ("capability", "metrics", "missing"),
    [
        ("9.0", {}, ("fp64", "fp32", "fp16_vector", *(f"Tensor Cores on {name}" for name in
         ("bf16", "fp16", "fp64", "fp8", "int1", "int8", "tf32")))),
        ("9.0", of_device("8.0"), ("Tensor Cores on fp8",)),
        ("8.9", of_device("8.0"), ("Tensor Cores on fp8",)),
        ("12.0", of_device("8.0"), ("Tensor Cores on fp4", "Tensor Cores on fp4_fp6", "Tensor Cores on fp8")),
        # Products of 8 bits are not those of 4 and 6 bits.
        ("12.0", {k: v for k, v in of_device("12.0").items() if "src_fp8" not in k}, ("Tensor Cores on fp8",)),
        ("12.0", {k: v for k, v in of_device("12.0").items() if "fp8_dst_fp16" not in k}, ("Tensor Cores on fp8",)),
        # This device has instructions on several numbers, which were not counted.
        ("10.0", counts(DEVICES["10.0"]), ("fp32", "fp8_vector")),
        ("8.6", {k: v for k, v in of_device("8.6").items() if "int4" not in k}, ("Tensor Cores on int4",)),
        ("9.0", {k: v for k, v in of_device("9.0").items() if "_fmul_" not in k}, ("fp32",)),
        # Of which device it is, is not known, or what it has.
        (None, of_device("9.0"), ("devices of compute capability unknown",)),
        ("7.5", of_device("9.0"), ("devices of compute capability 7.5",)),
        ("13.0", of_device("12.0"), ("devices of compute capability 13.0",)),
    ],
)  # fmt: skip
def test_what_was_not_counted_is_named(
    capability: str | None, metrics: Mapping[str, float], missing: tuple[str, ...]
) -> None:
    assert counted_operations(metrics, capability).not_counted == missing


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


@pytest.mark.parametrize("odd", [-1.0, math.inf, math.nan])
def test_impossible_counts_are_none(odd: float) -> None:
    assert counted_operations(of_device("9.0", ffma=odd), "9.0").not_counted == ("fp32",)
    assert counted_bytes({"dram__bytes.sum": odd}) is None


@pytest.mark.parametrize(
    ("metrics", "moved"),
    [
        ({"dram__bytes_read.sum": 5, "dram__bytes_write.sum": 7}, 12),
        ({"dram__bytes_op_read.sum": 5, "dram__bytes_op_write.sum": 7}, 12),  # as on compute capability 12.0
        ({"dram__bytes_read.sum": 5, "dram__bytes.sum": 13}, 13),
        ({"dram__bytes_read.sum": 5}, None),
        ({"dram__bytes.sum.per_second": 2e9, "gpu__time_duration.sum": 1_500}, 3_000),
        ({"dram__bytes.sum.per_second": 2e9, "gpu__time_duration.sum": 1_500, "dram__bytes.sum": 2_999}, 2_999),
        ({"dram__bytes.sum.per_second": 2e9}, None),
        ({}, None),
    ],
)
def test_bytes(metrics: Mapping[str, float], moved: float | None) -> None:
    assert counted_bytes(metrics) == moved


def test_the_fastest_rate_counts_where_several_can_apply() -> None:
    peaks = {"fp16": 10, "fp16_acc16": 20, "fp8": 30, "fp8_acc16": 60, "bf16": 5}
    assert fastest_rate("fp16", peaks) == 10
    assert fastest_rate("fp16_acc16", peaks) == 20
    assert fastest_rate("fp16_acc16", {"fp16": 10}) == 10
    assert fastest_rate("fp8", peaks) == 60
    assert fastest_rate("fp8", {"fp8": 30}) == 30
    assert fastest_rate("fp6", peaks) is None


@pytest.mark.parametrize("capability", DEVICES)
def test_what_is_asked_for_is_all_and_no_more(capability: str) -> None:
    """Patterns of Nsight Compute match names with their suffix; those of rates and peaks are not asked for."""
    patterns = [re.compile(metric.removeprefix("regex:")) for metric in WORK_METRICS]

    def asked(name: str) -> bool:
        return any(pattern.search(name) for pattern in patterns)

    assert all(asked(name) and asked(name.removesuffix(".sum")) for name in of_device(capability))
    assert asked("dram__bytes_read.sum")
    assert asked("dram__bytes_op_write.sum")
    for other in ("sm__ops_path_tensor_src_fp16_dst_fp16_realtime", "sm__ops_path_tensor_src_fp16.sum.per_second",
                  "sm__ops_path_tensor_src_fp8_sparsity_on.sum", "dram__bytes_read_sectors.sum"):  # fmt: skip
        assert not asked(other)


# ------------------------------------------------------------- below the roofs of a device

H200 = {"device__attribute_display_name": "NVIDIA H200"}


def table(
    path: Path, kernels: Sequence[tuple[str, Mapping[str, float]]], capability: str = "9.0", **identity: str
) -> Path:
    """Write kernels as the raw page of ``ncu --csv``, in base units; what a kernel lacks is ``n/a``."""
    names = list(dict.fromkeys(name for _, metrics in kernels for name in metrics))
    heads = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "CC", *identity, *names]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(heads)
    writer.writerow(["ns" if name == "gpu__time_duration.sum" else "" for name in heads])
    for number, (kernel, metrics) in enumerate(kernels):
        own = [number, 1, kernel, "(32, 1, 1)", "(2, 1, 1)", capability]
        cells = (f"{metrics[name]:,.0f}" if name in metrics else "n/a" for name in names)
        writer.writerow([*own, *identity.values(), *cells])
    path.write_text(out.getvalue())
    return path


def moved(read: float, written: float, duration_ns: float) -> dict[str, float]:
    return {"dram__bytes_read.sum": read, "dram__bytes_write.sum": written, "gpu__time_duration.sum": duration_ns}


def analyzed(folder: Path, *inputs: object, wide: bool = False) -> tuple[dict[str, Any], str]:
    """Return the JSON document and the table of some inputs."""
    document = opscope("analyze", *map(str, inputs), "--format", "json", cwd=folder)
    assert document.returncode == 0, document.stderr
    shown = opscope("analyze", *map(str, inputs), cwd=folder, env={"COLUMNS": "300"})
    return json.loads(document.stdout), shown.stdout


def test_kernels_are_placed_below_the_roofs(tmp_path: Path) -> None:
    """On an H200: 4.8 TB/s, 66.9 TFLOP/s in float32, 989.4 in bfloat16."""
    kernels = [
        ("copies()", counts(OF_H100) | moved(2_400_000, 2_400_000, 2_000)),
        ("adds()", counts(OF_H100, fadd=1_200_000) | moved(2_400_000, 2_400_000, 2_000)),
        ("multiplies()", counts(OF_H100, bf16_dst_fp32=9_894_000_000, ffma=1_000) | moved(480_000, 0, 20_000)),
        ("converts()", counts(OF_H100, hadd=1_200_000) | moved(2_400_000, 2_400_000, 2_000)),
        ("halves()", counts(OF_H100, hfma=100_000_000) | moved(2_400_000, 2_400_000, 2_000)),
        ("spins()", counts(OF_H100) | moved(0, 0, 2_000)),
    ]
    path = table(tmp_path / "c.csv", kernels, **H200)
    document, shown = analyzed(tmp_path, path)
    works = {row["kernel"]: row["work"] for row in document["kernels"]}
    assert document["peaks"]["name"] == "NVIDIA H200"
    assert {tuple(row["not_counted"]) for row in document["kernels"]} == {()}
    assert works["copies()"]["operations"] == 0
    assert (works["copies()"]["ideal_ns"], works["copies()"]["limited_by"]) == (pytest.approx(1_000), "memory")
    assert works["adds()"]["operations_per_byte"] == pytest.approx(0.25)
    assert works["adds()"]["operations_per_s"] == pytest.approx(600e9)
    assert (works["adds()"]["unit"], works["adds()"]["unit_peak_per_s"]) == ("fp32", 66.9e12)
    assert works["multiplies()"]["operations_by_unit"] == {"bf16": 9_894_000_000, "fp32": 2_000}
    assert works["multiplies()"]["ideal_ns"] == pytest.approx(10_000)
    assert (works["multiplies()"]["limited_by"], works["multiplies()"]["unit"]) == ("compute", "bf16")
    # What may be conversions is not a sum; it limits nothing where it could not take as long as the bytes do.
    assert (works["converts()"]["operations"], works["converts()"]["ideal_ns"]) == (0, pytest.approx(1_000))
    assert (works["converts()"]["operations_per_s"], works["converts()"]["operations_per_byte"]) == (None, None)
    assert (works["halves()"]["ideal_ns"], works["halves()"]["limited_by"]) == (None, None)
    assert "may limit them" in works["halves()"]["reason"]
    assert "2 kernels with half-precision instructions" in shown
    assert "1 kernel without a limit: no arithmetic, and no bytes of the device's memory." in shown
    # Under Nsight Compute clocks are others, so without a run there is no share.
    assert {work["share"] for work in works.values()} == {None}
    assert "compute (bf16)" in shown
    assert "name the run's trace as well" in shown


@pytest.mark.parametrize("measured", ["known_metrics", "known_roofline"])
def test_known_work_as_an_h100_counted_it(tmp_path: Path, measured: str) -> None:
    """Products of 1,024 x 1,024 matrices, and multiplications element by element: 2 M N K and M N operations."""
    path = tmp_path / "known.csv"
    path.write_bytes(lzma.decompress((DATA / "counters" / f"{measured}.csv.xz").read_bytes()))
    document, _ = analyzed(tmp_path, path)
    assert {tuple(row["not_counted"]) for row in document["kernels"]} == {()}
    exact = 1e-9 if measured == "known_metrics" else 2e-3  # rates are printed with few digits
    products = [row["work"]["operations_by_unit"].items() for row in document["kernels"][:2]]
    assert dict(max(units, key=itemgetter(1)) for units in products) == {
        "tf32": pytest.approx(2 * 1024**3, rel=exact), "bf16": pytest.approx(2 * 1024**3, rel=exact)
    }  # fmt: skip
    multiplied = [row["work"] for row in document["kernels"] if "MulFunctor" in row["kernel"]]
    assert [work["operations_by_unit"] for work in multiplied] == [
        {"fp64": pytest.approx(1024**2, rel=exact)}, {"fp32": pytest.approx(1024**2, rel=exact)}
    ]  # fmt: skip
    # The factors are one matrix, which is read once; the cache keeps the product.
    assert [work["dram_bytes"] / 1024**2 for work in multiplied] == [
        pytest.approx(8, rel=0.01), pytest.approx(4, rel=0.01)
    ]  # fmt: skip
    assert document["peaks"]["name"] == "NVIDIA H100 SXM5 80GB"


def test_a_training_step_below_the_roofs_of_an_h100(tmp_path: Path) -> None:
    """The linear layer of 4,096 x 1,024 by 1,024 x 8,192 in TF32 does 2 M N K operations, forward and twice back."""
    path = tmp_path / "counters.csv"
    path.write_bytes(lzma.decompress((DATA / "counters" / "encoder_roofline.csv.xz").read_bytes()))
    trace = shutil.copy(DATA / "counters" / "encoder.json.gz", tmp_path)
    document, shown = analyzed(tmp_path, trace, path)
    assert "73 of 73 measured launches are those of" in shown
    assert shown.splitlines()[2].startswith("TF32 GEMM 256x128x32, Tensor Cores")
    dropout = next(row for row in document["kernels"] if "dropout" in row["kernel"])
    assert dropout["kernel"].startswith(
        "void native::<unnamed>::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned"
    )
    assert dropout["name_in_run"].startswith("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BF")
    assert dropout["summary"] == "BF16 dropout, vectorized"
    products = [row for row in document["kernels"] if "_tf32f32_" in row["kernel"]]
    operations = 2 * 4096 * 1024 * 8192
    assert [row["work"]["operations_by_unit"]["tf32"] for row in products] == [pytest.approx(operations, rel=1e-3)] * 3
    for row in products:  # 495 TFLOP/s in TF32, says the datasheet
        assert row["work"]["limited_by"] == "compute"
        assert row["work"]["share"] == pytest.approx(operations / 494.7e12 / (row["run_ns"] / 1e9), rel=2e-3)
    assert [round(row["work"]["share"], 3) for row in products] == [0.495, 0.771, 0.807]
    # Where memory limits, the share is close to what Nsight Compute says of the memory, at its lower clocks.
    for row in document["kernels"]:
        if row["work"]["limited_by"] == "memory" and row["dram_percent"] and row["dram_percent"] > 75:
            assert 100 * row["work"]["share"] == pytest.approx(row["dram_percent"], abs=11)


def test_the_share_is_of_the_time_in_the_run(tmp_path: Path) -> None:
    """What counts is how long `a` took in the run, not how long under Nsight Compute."""
    metrics = counts(OF_H100, ffma=100) | moved(100_000_000, 0, 99_000)
    path = table(tmp_path / "c.csv", [("a(float *)", metrics), ("elsewhere()", metrics)])
    run = str(DATA / "exec" / "graph.cudarec.xz")
    document, shown = analyzed(tmp_path, run, path)
    works = {row["kernel"]: row["work"] for row in document["kernels"]}
    work, row = works["a(float *)"], next(row for row in document["kernels"] if row["kernel"] == "a(float *)")
    assert work["ns"] == row["run_ns"] < 99_000
    assert work["operations_per_s"] == pytest.approx(200e9 / row["run_ns"])
    assert work["share"] == pytest.approx(work["ideal_ns"] / row["run_ns"])
    assert work["ideal_ns"] == pytest.approx(1e17 / document["peaks"]["memory_bytes_per_s"])
    assert "caches held bytes" in shown
    assert "a peak or a count is wrong" not in shown
    # A kernel that the run does not have has no time at these clocks.
    assert works["elsewhere()"] is None
    assert "1 kernel without operations over bytes and time: the run has none of their launches." in shown
    other, _ = analyzed(tmp_path, run, path, "--gpu", "NVIDIA A100 SXM4 80GB")
    assert other["kernels"][0]["work"]["ideal_ns"] > work["ideal_ns"]


def test_only_joined_launches_count(tmp_path: Path) -> None:
    """Of 13 measured launches the run has 6; what the others did belongs to no time of the run."""
    small, large = (counts(OF_H100, ffma=count) | moved(1_000, 0, 2_000) for count in (100, 10**9))
    path = table(tmp_path / "c.csv", [("a(float *)", small)] * 6 + [("a(float *)", large)] * 7)
    document, _ = analyzed(tmp_path, DATA / "exec" / "graph.cudarec.xz", path)
    (row,) = document["kernels"]
    assert (row["measured"], row["joined"], row["work"]["launches"]) == (13, 6, 6)
    assert row["work"]["operations"] == 200


def test_launches_that_differ_are_added_up(tmp_path: Path) -> None:
    """One of three does all the work: 2e9 operations and 3 MB in 1.2 ms over all."""
    busy, idle = (counts(OF_H100, ffma=1e9) | moved(1e6, 2e6, 1e6), counts(OF_H100) | moved(0, 0, 1e5))
    unknown = counts(OF_H100, ffma=1e9) | {"dram__bytes_read.sum": 5.0, "gpu__time_duration.sum": 1e3}
    path = table(tmp_path / "c.csv", [("k()", one) for one in (busy, idle, idle, unknown)], **H200)
    document, shown = analyzed(tmp_path, path)
    (row,) = document["kernels"]
    work = row["work"]
    assert (row["measured"], work["launches"]) == (4, 3)
    assert "1 kernel: all was counted of some launches only" in shown
    assert "not counted" not in shown
    assert work["operations_per_s"] == pytest.approx(2e9 / 1.2e-3)
    assert work["operations_per_byte"] == pytest.approx(2e9 / 3e6)
    assert row["not_counted"] == ["bytes of the device's memory"]


@pytest.mark.parametrize(
    ("device", "capability", "metrics", "reason"),
    [
        ("NVIDIA H200", "9.0", counts(("fp8_sparsity_on", "fp8_sparsity_off", *(p for p in OF_H100 if p != "fp8")),
         fp8_sparsity_on=9e9), "sparse matrices"),
        ("NVIDIA GeForce RTX 5090", "12.0", of_device("12.0", fp4_fp6_dst_fp32=9e9), "peaks that are not known: fp6"),
        ("A card of no one", "9.0", of_device("9.0", ffma=9e9), "the peaks of the device are not known"),
    ],
)  # fmt: skip
def test_without_a_peak_there_is_no_limit(
    tmp_path: Path, device: str, capability: str, metrics: Mapping[str, float], reason: str
) -> None:
    kernels = [("k()", {**metrics, **moved(100, 0, 1_000)})]
    document, shown = analyzed(
        tmp_path, table(tmp_path / "c.csv", kernels, capability, device__attribute_display_name=device)
    )
    work = document["kernels"][0]["work"]
    assert work["operations"] > 0
    assert (work["ideal_ns"], work["limited_by"], work["unit"]) == (None, None, None)
    assert reason in work["reason"]
    assert f"1 kernel without a limit: {work['reason']}." in shown


def test_part_of_the_counters_makes_no_sum(tmp_path: Path) -> None:
    """A product of matrices with only its float32 instructions counted would look like no work at all."""
    metrics = {f"{SASS.format(name)}.sum": 8.0 for name in ("fadd", "fmul", "ffma")} | moved(1_000, 0, 1_000)
    whole = counts(OF_H100, ffma=1) | moved(1_000, 0, 1_000)
    path = table(tmp_path / "c.csv", [("gemm()", metrics), ("whole()", whole)], **H200)
    document, shown = analyzed(tmp_path, path)
    rows = {row["kernel"]: row for row in document["kernels"]}
    assert rows["gemm()"]["work"] is None
    assert "Tensor Cores on bf16" in rows["gemm()"]["not_counted"]
    assert rows["whole()"]["work"]["operations"] == 2
    assert "1 kernel without operations over bytes and time: not counted: fp64, fp16_vector, Tensor" in shown
    # A table without any operations is not a table with some missing.
    plain = table(tmp_path / "d.csv", [("k()", moved(1, 1, 1))])
    assert analyzed(tmp_path, plain)[0]["kernels"][0]["not_counted"] == []


def test_devices_that_differ_have_no_common_peaks(tmp_path: Path) -> None:
    one = [("k()", counts(OF_H100, ffma=4) | moved(100, 0, 100))]
    h200 = table(tmp_path / "h200.csv", one, **H200)
    unknown = table(tmp_path / "u.csv", one, device__attribute_display_name="A card of no one")
    h100 = table(tmp_path / "h100.csv", one, device__attribute_display_name="NVIDIA H100 80GB HBM3")
    for other, reason in ((unknown, "are not known"), (h100, "different peaks")):
        document, _ = analyzed(tmp_path, h200, other)
        assert document["peaks"] is None
        assert document["kernels"][0]["work"]["operations"] == 8
        assert reason in document["kernels"][0]["work"]["reason"]
    # The run is of an H200.
    a = [("a(float *)", one[0][1])]
    run = DATA / "exec" / "graph.cudarec.xz"
    other = table(tmp_path / "a.csv", a, device__attribute_display_name="NVIDIA H100 80GB HBM3")
    document, _ = analyzed(tmp_path, run, other)
    assert document["kernels"][0]["work"]["reason"] == (
        "the counters are of NVIDIA H100 80GB HBM3, and the run is of NVIDIA H200"
    )
    # A table without names of devices still says their compute capability.
    nameless = table(tmp_path / "n.csv", a, "8.0")
    for inputs in ((run, nameless), (h200, nameless)):
        document, shown = analyzed(tmp_path, *inputs)
        assert document["peaks"] is None
        assert {row["work"]["ideal_ns"] for row in document["kernels"] if row["work"]} <= {None}
    assert "different compute capabilities: 8.0, 9.0" in shown
    same = table(tmp_path / "b.csv", a, **H200)
    assert analyzed(tmp_path, run, same)[0]["kernels"][0]["work"]["share"] is not None


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    """4,000 TFLOP/s in bfloat16 are four times what an H200 can do."""
    kernels = [("k()", counts(OF_H100, bf16_dst_fp32=4e12) | moved(1_000, 0, 1_000_000))]
    _, shown = analyzed(tmp_path, table(tmp_path / "c.csv", kernels, **H200))
    assert "a peak or a count is wrong" in shown


def test_devices_without_counters_of_their_memory_say_so(tmp_path: Path) -> None:
    metrics = counts((*BLACKWELL, "fp4_fp6_dst_fp16", "fp4_fp6_dst_fp32", "fp8_dst_fp16", "fp8_dst_fp32"), ffma=5)
    path = table(tmp_path / "c.csv", [("k()", metrics | {"gpu__time_duration.sum": 100})], "12.1")
    document, shown = analyzed(tmp_path, path)
    assert document["kernels"][0]["work"] is None
    assert "devices of compute capability 12.1 do not count the bytes of their memory" in shown
    no_time = {k: v for k, v in (counts(OF_H100) | moved(1, 1, 1)).items() if "duration" not in k}
    _, shown = analyzed(tmp_path, table(tmp_path / "d.csv", [("k()", no_time)]))
    assert "their durations are not known" in shown


def test_time_in_the_run_sorts_first(tmp_path: Path) -> None:
    """600 launches of `a` were measured, of which the run has 6: these took less time than five of `b`."""
    short = counts(OF_H100) | moved(1_000, 0, 1_000)
    kernels = [("a(float *)", short)] * 600 + [("elsewhere()", short)]
    text = table(tmp_path / "a.csv", kernels).read_text()
    of_b = '"601","1","b(float *, int)","(32, 2, 1)","(1, 2, 1)","9.0"' + ',"1"' * len(short) + "\r\n"
    (tmp_path / "a.csv").write_text(text + of_b * 5)
    document, _ = analyzed(tmp_path, DATA / "exec" / "graph.cudarec.xz", tmp_path / "a.csv")
    assert [row["kernel"] for row in document["kernels"]] == ["b(float *, int)", "a(float *)", "elsewhere()"]


def test_processes_of_containers_may_have_one_id(tmp_path: Path) -> None:
    """Two tables of process 1 are of two processes, each joined with its own trace."""
    metrics = counts(OF_H100) | moved(1_000, 0, 1_000)
    tables = [table(tmp_path / f"{rank}.csv", [("a(float *)", metrics)]) for rank in (0, 1)]
    runs = [DATA / "exec" / f"two{rank}.cudarec.xz" for rank in (0, 1)]
    document, _ = analyzed(tmp_path, *tables, *runs)
    assert sum(row["measured"] for row in document["kernels"]) == 2
    assert document["unmatched_launches"] < 2


def test_csv_has_the_same_figures(tmp_path: Path) -> None:
    kernels = [
        ("adds()", counts(OF_H100, fadd=1_200_000) | moved(2_400_000, 2_400_000, 2_000)),
        ("k()", moved(1, 1, 1)),
    ]
    path = table(tmp_path / "c.csv", kernels, **H200)
    rows = list(csv.DictReader(opscope("analyze", str(path), "--format", "csv", cwd=tmp_path).stdout.splitlines()))
    assert float(rows[0]["work_operations_per_byte"]) == pytest.approx(0.25)
    assert rows[0]["work_limited_by"] == "memory"
    assert rows[1]["work_operations"] == ""


def test_absurd_tables_are_survived(tmp_path: Path) -> None:
    text = table(tmp_path / "c.csv", [("k()", counts(OF_H100, ffma=1) | moved(1, 1, 1))], **H200).read_text()
    for number in ("9" * 290 + "e99", "1e290", "-5", "nan", "inf", "0"):
        for old in ('"1"\r\n', '"2"\r\n'):
            (tmp_path / "odd.csv").write_text(text.replace(old, f'"{number}"\r\n'))
            document, shown = analyzed(tmp_path, tmp_path / "odd.csv")
            assert "nan" not in shown
            assert document["schema"] == "opscope.counters/1"
