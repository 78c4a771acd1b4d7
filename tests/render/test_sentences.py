"""Each statement on an operator as a sentence: the figures that people read."""

import pytest

from opscope.documents import statements as doc
from opscope.documents.statements import AnyEvidence, Evidence
from opscope.render.sentences import sentence

SENTENCES: list[tuple[AnyEvidence, str]] = [
    (
        doc.Independent(12, "elements", {"rows": 3, "columns": 4}, "each is a sum"),
        "Independent of each other: 12 elements (3 rows x 4 columns); each is a sum.",
    ),
    (
        doc.Independent(1, "elements", {"rows": 1}, "there is one"),
        "Independent of each other: 1 element; there is one.",
    ),
    (
        doc.Independent(2048, "rows", {"rows": 2048}, "a row is normalized"),
        "Independent of each other: 2,048 rows; a row is normalized.",
    ),
    (doc.Combined(4096, {"depth": 4096}), "Each combines 4,096 values (4,096 depth)."),
    (doc.PerBlock("elements", 1024, 4), "1,024 elements per thread block, 4 per thread."),
    (doc.PerBlock("elements", 99.5, 0.388671875), "99.5 elements per thread block, 0.389 per thread."),
    (doc.BlockPerTile((128, 64), 12, None, None, 1), "One thread block per tile of 128 x 64: 12 tiles."),
    (
        doc.BlockPerTile((128, 64), 12, 3, 4, 1),
        "One thread block per tile of 128 x 64: 3 tiles along the rows by 4 along the columns.",
    ),
    (
        doc.BlockPerTile((128, 64), 24, 3, 4, 2),
        "One thread block per tile of 128 x 64: 3 tiles along the rows by 4 along the columns, 2 times.",
    ),
    (
        doc.BlocksPerTile((64, 64), 1024, 1),
        "The result divides into 1,024 tiles of 64 x 64: 1 thread block per tile.",
    ),
    (doc.BlocksPerTile((64, 64), 8, 4), "The result divides into 8 tiles of 64 x 64: 4 thread blocks per tile."),
    (
        doc.TilesDiffer((128, 256), (48, 24)),
        "The result divides into 24 or 48 tiles of 128 x 256, which is not the grid: thread blocks may take several "
        "tiles each, or the kernel pads the grid.",
    ),
    (doc.Geometry(1, (1, 1, 1), 32, (32, 1, 1)), "1 thread block (1 x 1 x 1) of 32 threads (32 x 1 x 1)."),
    (
        doc.Geometry(2048, (64, 32, 1), 1024, (32, 32, 1)),
        "2,048 thread blocks (64 x 32 x 1) of 1,024 threads (32 x 32 x 1).",
    ),
    (doc.Waves(1.234, 1056), "1.23 waves: the device holds 1,056 of these thread blocks at a time."),
    (doc.Waves(0.01, 1056), "0.01 waves: the device holds 1,056 of these thread blocks at a time."),
    (doc.Waves(0.0094, 1056), "Under 0.01 waves: the device holds 1,056 of these thread blocks at a time."),
    (doc.Resources(48, 49_152), "48 registers per thread, 48.00 KiB shared memory per block."),
    (
        doc.TheoreticalOccupancy(12.5, 1, 8, "registers"),
        "12 % theoretical occupancy: 1 block (8 warps) per multiprocessor, limited by registers.",
    ),
    (
        doc.TheoreticalOccupancy(3.1, 2, 1, "blocks"),
        "3 % theoretical occupancy: 2 blocks (1 warp) per multiprocessor, limited by blocks.",
    ),
    (doc.AchievedOccupancy(61.7), "62 % of the warps were active on average (counters)."),
    (
        doc.Stalls({"long_scoreboard": 12.345, "wait": 1.0}),
        "Warps waited most for (warps per issued instruction): long scoreboard 12.35, wait 1.00 (counters).",
    ),
    (doc.ActiveThreads(31.96), "32.0 of 32 threads were active per instruction (counters)."),
    (
        doc.LeastTraffic(3 << 20, 2_500, 1258.3),
        "At least 3.000 MiB must be moved; in 2.500 us that is 1,258 GB/s, from memory or the L2 cache.",
    ),
    (
        doc.MemoryTraffic(2048, 1024, None),
        "Device memory: 2.000 KiB read, 1.000 KiB written (counters, caches empty at the start).",
    ),
    (
        doc.MemoryTraffic(2048, 1024, 71.5),
        "Device memory: 2.000 KiB read, 1.000 KiB written, 72 % of its peak (counters, caches empty at the start).",
    ),
    (
        doc.ExecutedOperations({"bf16_tensor": 2.5e12, "fp32": 999_999}, None, None),
        "Operations executed: 2.5 T in bf16_tensor, 999,999 in fp32 (counters).",
    ),
    (
        doc.ExecutedOperations({"fp32": 1e9}, 123.4, 1.25),
        "Operations executed: 1 G in fp32; 123 a byte of the device's memory; 1.25 times those of the operator's "
        "model (counters).",
    ),
    (
        doc.ExecutedOperations({"fp32": 1e6}, 0.0, 0.5),
        "Operations executed: 1 M in fp32; 0 a byte of the device's memory; 0.5 times those of the operator's model "
        "(counters).",
    ),
    (doc.Sectors("load", 3.96), "4.0 sectors of 32 bytes per load of a warp (counters)."),
    (doc.BankConflicts(31_744), "31,744 bank conflicts in shared memory (counters)."),
    (doc.VectorWidth(4), "Each thread loads 4 elements at a time, as the kernel's name says."),
    (doc.Share(12.34), "At most 12.3 % of the device sum, if it took no time at all."),
    (doc.Rate(1, 1, 1, 100), "It runs at 100 TFLOP/s."),
    (doc.Rate(1, 1, 3, 0.1), "It runs at 0.1 TFLOP/s, over the 3 kernels of a call."),
    (doc.Rate(1, 1, 1, 0.0994), "It runs at 99.4 GFLOP/s."),
    (
        doc.AnyAlignment({"rows": 8}, all_multiples_of_8=True),
        "The kernel takes operands of any alignment, though all sizes are multiples of 8: look at the strides.",
    ),
    (
        doc.AnyAlignment({"rows": 7}, all_multiples_of_8=False),
        "The kernel takes operands of any alignment: sizes that are multiples of 8 elements allow a faster one.",
    ),
    (doc.IdleMultiprocessors(100, 132), "It leaves 100 of 132 multiprocessors without work."),
    (
        doc.LastWave(2.25, 24.6),
        "Its last wave is 25 % full: thread blocks of another size, or larger inputs, would use the device more "
        "evenly.",
    ),
    (doc.UsualGain("as such kernels do"), "as such kernels do"),
    (doc.UsualMemory("neighbouring threads"), "neighbouring threads"),
    (doc.UsualSynchronisation("none"), "none"),
]


@pytest.mark.parametrize(("evidence", "says"), SENTENCES, ids=lambda one: type(one).__name__)
def test_a_statement_says_its_figures(evidence: AnyEvidence, says: str) -> None:
    assert sentence(evidence) == says


def test_every_kind_of_evidence_has_a_sentence() -> None:
    plain = {doc.DivisionUnknown, doc.GeometryUnknown, doc.ResourcesUnknown, doc.SynchronisationUnknown}
    plain |= {doc.LaunchBound}
    assert all(sentence(kind()).endswith(".") for kind in plain)
    said = {type(one) for one, _ in SENTENCES} | plain | {doc.OnFp32Cores}
    assert set(Evidence.__subclasses__()) == said
    assert "TF32" in sentence(doc.OnFp32Cores("sgemm"))
