"""Tables of Nsight Compute: both pages as recorded on an H200, older forms by hand, and how they join a run."""

import csv
import io
import json
import lzma
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import polars as pl
import pytest

from opscope.analysis.costs.counters import (
    Durations,
    Limit,
    counter_rows,
    durations_of,
    joined_launches,
    kernel_names,
    kernels_without,
)
from opscope.documents.stats import CountersDocument
from opscope.readers.ncu import is_counters, number_of, read_kernel_counters
from opscope.readers.reading import read
from opscope.record.counters import KernelCounters
from opscope.report.counters_document import counters_values
from tests.command import fresh_opscope
from tests.conftest import DATA

RECORDED = DATA / "exec"
COUNTERS = DATA / "counters"


def test_the_raw_page() -> None:
    text = (RECORDED / "ncu_raw.csv").read_text()
    assert is_counters(text)
    found = read_kernel_counters(text)
    assert len(found) == 16
    first = found[0]
    assert (first.kernel, first.grid, first.block) == ("a(float *)", "2,1,1", "32,1,1")
    assert first.metrics["gpu__time_duration.sum"] == 2_272
    assert first.metrics["dram__bytes_read.sum"] == 2_816
    assert "launch__cluster_scheduling_policy" not in first.metrics  # a word, and no number


def test_the_page_of_details() -> None:
    found = read_kernel_counters((RECORDED / "ncu_details.csv").read_text())
    assert [one.kernel for one in found] == ["a(float *)", "b(float *, int)", "void c<double>(T1 *)"]
    first = found[0].metrics
    assert (first["Duration"], first["Registers Per Thread"], first["Achieved Occupancy"]) == (2_144, 16, 1.56)


def test_older_versions_have_fewer_columns() -> None:
    text = (
        "==PROF== Connected to process 1\n"
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context","Stream","Section Name",'
        '"Metric Name","Metric Unit","Metric Value"\n'
        '"0","1","p","h","k(int)","2020-Apr-07 17:01:05","1","7","Speed","Duration","usecond","12.5"\n'
        '"0","1","p","h","k(int)","2020-Apr-07 17:01:05","1","7","Speed","SOL SM","%","n/a"\n'
        '"1","1","p","h","k(int)","2020-Apr-07 17:01:05","1","7","Speed","Duration","msecond","1.5"\n'
    )
    found = read_kernel_counters(text)
    assert [one.metrics for one in found] == [{"Duration": 12_500.0}, {"Duration": 1_500_000.0}]
    assert found[0].grid is None


def test_a_name_of_two_sections_is_told_apart_by_its_unit() -> None:
    names = "ID|Process ID|Process Name|Host Name|Kernel Name|Section Name|Metric Name|Metric Unit|Metric Value"
    head = '"' + names.replace("|", '","') + '"\n'
    rows = '"0","1","p","h","k()","M","Memory Throughput","Gbyte/second","812.3"\n'
    rows += '"0","1","p","h","k()","S","Memory Throughput","%","41"\n'
    (found,) = read_kernel_counters(head + rows)
    assert found.metrics == {"Memory Throughput": 41, "Memory Throughput per second": 812.3e9}


def test_the_device_is_read() -> None:
    head = '"ID","Process ID","Kernel Name","CC","device__attribute_display_name",'
    head += '"device__attribute_compute_capability_major","device__attribute_compute_capability_minor"\n'
    head += '"","","","","","",""\n'
    both = [
        read_kernel_counters(f'{head}"0","1","k()","{capability}","NVIDIA B200","10","0"\n')[0]
        for capability in ("9.0", "(!) nan")
    ]
    assert [(one.device, one.compute_capability) for one in both] == [("NVIDIA B200", "9.0"), ("NVIDIA B200", "10.0")]
    (bare,) = read_kernel_counters('"ID","Process ID","Kernel Name"\n"","",""\n"0","1","k()"\n')
    assert (bare.device, bare.compute_capability) == (None, None)


@pytest.mark.parametrize(
    ("cell", "unit", "number"),
    [
        ("1,234.5", "ns", 1_234.5),
        ("2", "Kbyte", 2_000),
        ("n/a", "", None),
        ("", "%", None),
        ("3", "inst", 3),
        ("1,5", "us", None),
        ("inf", "s", None),
        ("1", "Tbyte", 1e12),
        ("2.5", "Gbyte/second", 2.5e9),
        ("3", "byte/s", 3),
        ("1.98", "cycle/nsecond", 1.98e9),
        ("1980", "cycle/us", 1.98e9),
        ("1.98", "cycle/ms", 1.98e3),
        ("1.5", "Ginst", 1.5e9),
        ("9" * 290 + "e99", "", None),
        ("1.98", "Ghz", 1.98e9),
        ("7", "inst/cycle", 7),
        ("1_000", "", None),
    ],
)
def test_numbers(cell: str, unit: str, number: float | None) -> None:
    assert number_of(cell, unit) == number


def test_runs_and_processes_are_told_apart() -> None:
    names = "ID|Process ID|Process Name|Host Name|Kernel Name|Section Name|Metric Name|Metric Unit|Metric Value"
    head = '"' + names.replace("|", '","') + '"\n'
    rows = '"0","1","p","h","k()","S","Duration","ns","5"\n"0","2","p","h","k()","S","Duration","ns","7"\n'
    assert [one.metrics["Duration"] for one in read_kernel_counters(head + rows + head + rows)] == [5, 7, 5, 7]


def test_other_tables_are_none() -> None:
    assert not is_counters("a,b\n1,2\n")
    assert read_kernel_counters("") == ()
    assert read_kernel_counters('"ID","Process ID"\n"0"\n') == ()


def test_counters_join_the_launches_that_they_are_of() -> None:
    """The n-th launch of a name and geometry is the n-th in the run, though the tools spell parameters differently."""
    trace = read(RECORDED / "graph.cudarec.xz")
    counters = read_kernel_counters((RECORDED / "ncu_raw.csv").read_text())
    run = [durations_of(trace)]
    names = kernel_names(counters, run)
    launches = joined_launches(counters, run, names)
    assert all(one.run_ns is not None for one in launches)
    assert sum(one.run_ns or 0 for one in launches) == sum(
        duration for kind, duration in trace.activities.select("kind", "duration_ns").iter_rows() if kind == "kernel"
    )
    rows = counter_rows(counters, launches, Limit(None, "", has_run=True), names)
    assert [(row.kernel, row.measured, row.joined) for row in rows] == [
        ("b(float *, int)", 5, 5), ("a(float *)", 6, 6), ("void c<double>(T1 *)", 5, 5)
    ]  # fmt: skip
    assert rows[0].run_ns == 3_168
    assert kernels_without(counters, run, names) == 0


def test_what_the_run_does_not_have_stays_alone() -> None:
    trace = read(RECORDED / "graph.cudarec.xz")
    other = [KernelCounters("a(float *)", "1", "9,1,1", "32,1,1", {}), KernelCounters("z()", "1", None, None, {})]
    run = [durations_of(trace)]
    assert times(other, run) == [None, None]
    assert kernels_without(other, run, kernel_names(other, run)) == 3
    assert times(other, []) == [None, None]


def test_processes_are_joined_to_their_own(tmp_path: Path) -> None:
    """Two processes launch the same kernel: each one's first launch is the first of its own trace."""
    traces = [read(RECORDED / f"two{number}.cudarec.xz") for number in (0, 1)]
    counters = [KernelCounters("a(float *)", process, "1,1,1", "32,1,1", {}) for process in ("7", "7", "9")]
    counters[2] = KernelCounters("a(float *)", "9", "2,1,1", "32,1,1", {})
    own = [
        trace.activities.filter(pl.col("name").cast(pl.String) == "a(float*)").sort("start_ns")["duration_ns"].to_list()
        for trace in traces
    ]
    run = [durations_of(trace) for trace in traces]
    assert times(counters, run) == [own[0][0], own[0][1], own[1][0]]


@pytest.mark.parametrize(
    ("trace", "table"),
    [
        ("operators", "operators"),
        ("encoder", "encoder_roofline"),
        ("encoder", "encoder_mangled"),
        ("encoder", "encoder_full_names"),
    ],
)
def test_nsight_computes_names_are_those_of_pytorch(trace: str, table: str) -> None:
    """Both programs launch the same kernels in the same order, so the n-th measured launch is the n-th of the trace."""
    counters = read_kernel_counters(lzma.decompress((COUNTERS / f"{table}.csv.xz").read_bytes()).decode())
    of_run = read(COUNTERS / f"{trace}.json.gz")
    kernels = of_run.activities.filter(pl.col("kind").cast(pl.String) == "kernel").sort("start_ns")
    run = [durations_of(of_run)]
    assert times(counters, run) == kernels["duration_ns"].to_list()
    assert kernels_without(counters, run, kernel_names(counters, run)) == 0
    launches = joined_launches(counters, run, kernel_names(counters, run))
    assert not any(one.kernel.startswith("_Z") for one in launches)


ONE = ("1,1,1", "32,1,1")


def of_run(*names: str) -> Durations:
    """Return kernels of a process that take 0, 1, 2.. ns, one launch each."""
    return {(name, *ONE): [number] for number, name in enumerate(names)}


def measured(*names: str, process: str = "1") -> list[KernelCounters]:
    return [KernelCounters(name, process, *ONE, {}) for name in names]


def test_kernels_that_differ_in_what_nsight_compute_leaves_out_are_not_mixed_up() -> None:
    run = of_run(
        "void at::pad<float>(Accessor<float, 2ul>)", "void at::pad<float>(Accessor<float, 3ul>)",
        "void one::k<int>(int*)", "void two::k<int>(int*)", "void other::fine<true, 4u>(float const*)",
        "displace(float**, int)", "displace(double**, int)",
    )  # fmt: skip
    counters = measured(
        "void pad<float>(T1)", "void k<int>(T1 *)", "void fine<1, 4>(const T1 *)", "displace(float **, int)",
        "displace(double **, int)", "void two::k<int>(int*)",
    )  # fmt: skip
    assert times(counters, [run]) == [None, None, 4, 5, 6, 3]
    assert kernels_without(counters, [run], kernel_names(counters, [run])) == 3
    mangled = of_run("_ZN3one1kIiEEvPT_", "void two::k<int>(int*)")
    assert times(measured("void one::k<int>(int*)"), [mangled]) == [0]


def test_a_kernel_that_ran_with_another_geometry_is_not_in_the_run() -> None:
    counters = [KernelCounters("void k<int>(T1)", "1", "9,1,1", "32,1,1", {})]
    run = [of_run("void one::k<int>(int)")]
    names = kernel_names(counters, run)
    launches = joined_launches(counters, run, names)
    (row,) = counter_rows(counters, launches, Limit(None, "", has_run=True), names)
    assert (row.joined, row.run_ns, row.name_in_run, row.summary) == (0, None, None, None)
    assert kernels_without(counters, run, names) == 1


@pytest.mark.parametrize(
    ("ncu", "profiler", "same"),
    [
        ("_ZN3two1kIiEEvPT_", "void one::k<int>(int*)", False),  # mangled names are whole
        ("_ZN3one1kIiEEvPT_", "void one::k<int>(int*)", True),
        ("void one::k<int>(int*)", "_ZN3one1kIiEEvPT_", True),
        ("void two::k<int>(T1 *)", "void one::k<int>(int*)", False),  # a namespace that the other has not
        ("void k<int>(T1 *)", "void one::k<int>(int*)", True),
        ("my_softmax(float *, int)", "my_softmax(double*, int)", False),  # no template: parameters are written out
        ("my_softmax(const ns::A *, int)", "my_softmax(ns::A const*, int)", True),
        ("k(void (*)(int))", "k(void (*)(int))", True),
        ("void f<Z<int>>(T1::Params)", "void f<Z<int> >(Z<int>::Params)", True),
        ("void f<Z<int>>(int)", "void f<Z<int>, >(int)", True),
    ],
)
def test_one_kernel_alone_in_both(ncu: str, profiler: str, same: bool) -> None:
    """Part of a program may be captured on either side, so that the kernel it could be mixed up with is not there."""
    assert times(measured(ncu), [of_run(profiler)]) == [0 if same else None]


def test_processes_have_kernels_of_their_own() -> None:
    """The same short name is another kernel in each process; and what one process mixes up is plain in the other."""
    counters = [*measured("void k<int>(T1)"), *measured("void k<int>(T1)", process="2")]
    run = [of_run("void one::k<int>(int)"), of_run("", "void two::k<int>(int)")]
    names = kernel_names(counters, run)
    launches = joined_launches(counters, run, names)
    assert [one.run_ns for one in launches] == [0, 1]
    rows = counter_rows(counters, launches, Limit(None, "", has_run=True), names)
    assert sorted((row.name_in_run, row.run_ns) for row in rows) == [
        ("void one::k<int>(int)", 0), ("void two::k<int>(int)", 1)
    ]  # fmt: skip
    run[1] = of_run("void two::k<int>(int)", "void three::k<int>(int)")
    assert times(counters, run) == [0, None]
    launches = joined_launches(counters, run, kernel_names(counters, run))
    (unmatched,) = (
        row
        for row in counter_rows(counters, launches, Limit(None, "", has_run=True), kernel_names(counters, run))
        if not row.joined
    )
    assert (unmatched.name_in_run, unmatched.summary) == (None, None)


def test_a_name_that_stands_for_gigabytes_is_left_as_it_is(tmp_path: Path) -> None:
    """Each level of ``A<A<..>, A<..>>`` doubles what the one before stands for."""
    name, digits = "_Z1k1AIiiE", "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for level in range(30):
        name += f"S_IS{digits[level]}_S{digits[level]}_E"
    path = tmp_path / "counters.csv"
    path.write_text(f'"ID","Process ID","Kernel Name","gpu__time_duration.sum"\n"","","","ns"\n"0","1","{name}","5"\n'
                    '"1","1","_Z1fi","6"\n')  # fmt: skip
    found = fresh_opscope("analyze", str(path), "--format", "json")
    assert found.returncode == 0
    assert {row["kernel"] for row in json.loads(found.stdout)["kernels"]} == {name, "f(int)"}


def test_short_names_of_several_kernels_come_with_the_long_ones(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_bytes(lzma.decompress((COUNTERS / "encoder_mangled.csv.xz").read_bytes()))
    trace = shutil.copy(COUNTERS / "encoder.json.gz", tmp_path)
    shown = fresh_opscope("analyze", trace, str(path)).stdout
    assert "GEMM 256x128x64, Tensor Cores: nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NTT " in shown
    assert "BF16 dropout, vectorized  " in shown
    values = fresh_opscope("analyze", trace, str(path), "--format", "csv").stdout
    (dropout,) = (row for row in csv.DictReader(io.StringIO(values)) if "dropout" in row["kernel"])
    assert dropout["name_in_run"] == dropout["kernel"]
    assert dropout["summary"] == "BF16 dropout, vectorized"
    document = json.loads(fresh_opscope("analyze", trace, str(path), "--format", "json").stdout)
    table = counters_values(msgspec.convert(document, CountersDocument), None)
    assert [table.columns[at] for at in range(len(table.columns)) if at not in table.numeric] == [
        "kernel", "grid", "block", "name_in_run", "summary"
    ]  # fmt: skip


def times(counters: Sequence[KernelCounters], run: Sequence[Durations]) -> list[int | None]:
    """Return how long each measured launch took in the run."""
    return [one.run_ns for one in joined_launches(counters, run, kernel_names(counters, run))]


def test_damage_of_a_run_is_no_success(tmp_path: Path) -> None:
    cut = tmp_path / "cut.cudarec"
    cut.write_bytes(lzma.decompress((RECORDED / "graph.cudarec.xz").read_bytes())[:-100])
    table = str(RECORDED / "ncu_raw.csv")
    assert fresh_opscope("analyze", str(cut), table).returncode == 4
    assert fresh_opscope("analyze", str(cut), table, "--allow-damaged").returncode == 0
    assert fresh_opscope("analyze", table, "--by", "kernel").returncode == 2


def test_the_command(tmp_path: Path) -> None:
    table = str(RECORDED / "ncu_raw.csv")
    alone = fresh_opscope("analyze", table)
    assert alone.returncode == 0
    assert "Under ncu" in alone.stdout
    assert "In the run" not in alone.stdout
    joined = json.loads(fresh_opscope("analyze", str(RECORDED / "graph.cudarec.xz"), table, "--format", "json").stdout)
    assert joined["schema"] == "opscope.counters/1"
    assert (joined["unmatched_launches"], len(joined["launches"])) == (0, 16)
    csv = fresh_opscope("analyze", str(RECORDED / "graph.cudarec.xz"), table, "--format", "csv").stdout.splitlines()
    assert csv[0].startswith("kernel,grid,block,measured,joined,run_ns,ncu_ns,")
    assert '"b(float *, int)","1,2,1","32,2,1",5,5,3168,' in csv[1]
    two = fresh_opscope("analyze", table, str(RECORDED / "two0.cudarec.xz"), str(RECORDED / "two1.cudarec.xz"))
    assert (two.returncode, "processes of the run that used a device: 2" in two.stderr) == (2, True)
    printed = tmp_path / "ncu.txt"
    printed.write_text(Path(table).read_text())
    assert "Under ncu" in fresh_opscope("analyze", str(printed)).stdout
    tidy = tmp_path / "tidy.csv"
    tidy.write_text(Path(table).read_text().partition('"ID"')[1] + Path(table).read_text().partition('"ID"')[2])
    assert "which opscope analyze reads" in fresh_opscope("analyze", "--stats", "cuda_gpu_sum", str(tidy)).stderr
    empty = tmp_path / "empty.csv"
    empty.write_text('"ID","Process ID","Process Name"\n')
    assert fresh_opscope("analyze", str(empty)).returncode == 4
