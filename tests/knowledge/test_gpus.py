"""The table of GPUs, and devices as the driver describes them."""

import json
import subprocess
import sys
import tomllib
from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace

from opscope.knowledge.devices import (
    capability_of,
    compute_capabilities,
    device_called,
    gencode,
    is_listed,
    known_devices,
    sm_of,
    version_of,
)
from opscope.render.table_formats import as_text
from opscope.report.gpus_document import chosen_gpus, gpus_here, gpus_table, known_gpus
from tests import machines
from tests.command import ROOT, opscope


def test_every_model_has_a_known_compute_capability_and_a_source() -> None:
    for gpu in known_gpus():
        assert gpu.sources["figures"]
        if gpu.vendor == "nvidia":
            assert gpu.compute_capability in compute_capabilities()
            assert gpu.flag == f"-arch=sm_{gpu.compute_capability.replace('.', '')}"
        assert gpu.kind in ("data centre", "workstation", "consumer", "embedded")
        assert gpu.sms is None or gpu.sms > 0
    assert len(known_gpus()) == len(known_devices())


# From NVIDIA's release notes, and what its compilers build for: what is often said wrongly.
@pytest.mark.parametrize(
    ("name", "arch", "cuda_min", "cuda_max"),
    [
        ("NVIDIA B200", "sm_100", "12.8", None),
        ("NVIDIA GeForce RTX 5090", "sm_120", "12.8", None),
        ("NVIDIA GeForce RTX 3090", "sm_86", "11.1", None),
        ("NVIDIA T4", "sm_75", "10.0", None),
        ("NVIDIA L4", "sm_89", "11.8", None),
        ("NVIDIA V100 SXM2 16GB", "sm_70", "9.0", "12.9"),
        ("NVIDIA H200", "sm_90", "11.8", None),
        ("NVIDIA B300", "sm_103", "12.9", None),
    ],
)
def test_what_is_often_wrong(name: str, arch: str, cuda_min: str, cuda_max: str | None) -> None:
    (gpu,) = (gpu for gpu in known_gpus() if gpu.name == name)
    assert (gpu.arch, gpu.cuda_min, gpu.cuda_max) == (arch, cuda_min, cuda_max)


def test_peaks_follow_from_cores_and_clock() -> None:
    """FP32: multiprocessors x cores x 2 x clock; datasheets round, and some state another clock."""
    checked = 0
    for gpu in known_gpus():
        known = compute_capabilities().get(gpu.compute_capability)
        if known is None or gpu.boost_clock_mhz is None or gpu.sms is None or "fp32" not in gpu.peak_flops:
            continue
        computed = 2.0 * gpu.sms * known.fp32_cores * gpu.boost_clock_mhz * 1e6
        assert computed == pytest.approx(gpu.peak_flops["fp32"], rel=0.03), gpu.name
        checked += 1
    assert checked > 25


def test_flags() -> None:
    assert gencode("9.0") == (
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    )
    assert gencode("12.0", ptx=False) == ("-gencode=arch=compute_120,code=sm_120",)
    assert [capability_of(text) for text in ("sm_90", "compute_100", "sm_90a", "12.0", "sm_121f", "hopper", "9")] == [
        "9.0", "10.0", "9.0", "12.0", "12.1", None, None,
    ]  # fmt: skip
    assert (sm_of("10.3"), sm_of("gfx942")) == ("sm_103", "gfx942")
    assert version_of("12.8.93") == (12, 8, 93)


def test_devices_here_have_the_figures_of_their_model_and_the_drivers_facts() -> None:
    (gpu,) = gpus_here(machines.ONE).gpus
    assert gpu.name == "NVIDIA H200"
    assert gpu.memory_bytes == machines.H200.memory_bytes
    assert gpu.memory_bytes_per_s == 4.8e12
    assert gpu.here == machines.H200
    assert gpu.note is None
    assert len(gpus_here(machines.EIGHT).gpus) == 8
    assert [gpu.arch for gpu in gpus_here(machines.MIXED).gpus] == ["sm_90", "sm_89"]


def test_an_unknown_model_is_described_by_the_driver_alone() -> None:
    """2 x 140 x 128 x 2.52 GHz = 90.3 TFLOP/s; 2 x 10.501 GHz x 384 / 8 = 1008 GB/s."""
    (gpu,) = gpus_here(machines.UNKNOWN).gpus
    assert gpu.note is not None
    assert "not in the table" in gpu.note
    assert gpu.architecture == "Ada Lovelace"
    assert gpu.peak_flops == {"fp32": pytest.approx(90.3168e12)}
    assert gpu.memory_bytes_per_s == pytest.approx(1008.096e9)
    assert gpu.sources["bandwidth"] == "computed from the driver's clocks"
    (future,) = gpus_here(machines.FUTURE).gpus
    assert (future.architecture, future.cuda_min, dict(future.peak_flops)) == (None, None, {})
    assert future.arch == "sm_140"


def test_a_slice_has_not_the_cards_peaks() -> None:
    (gpu,) = gpus_here(machines.MIG).gpus
    assert gpu.note is not None
    assert "slice" in gpu.note
    assert gpu.memory_bytes_per_s is None
    assert gpu.sms == 16
    assert gpu.peak_flops == {}


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (machines.NONE, "no CUDA driver"),
        (machines.BROKEN, "CUDA error 803"),
        (machines.HIDDEN, "no CUDA-capable device"),
    ],
)
def test_no_devices_say_why(driver: machines.Driver, said: str) -> None:
    document = gpus_here(driver)
    assert document.gpus == ()
    assert said in (document.problem or "")


def test_choosing_and_showing() -> None:
    assert [gpu.name for gpu in chosen_gpus(known_gpus(), ["4090"], None)] == [
        "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU",
    ]  # fmt: skip
    assert {gpu.architecture for gpu in chosen_gpus(known_gpus(), [], "hopper")} == {"Hopper"}
    assert chosen_gpus(known_gpus(), [], "sm_90") == chosen_gpus(known_gpus(), [], "9.0")
    assert chosen_gpus(known_gpus(), ["no such"], None) == ()
    text = as_text(gpus_table(gpus_here(machines.MIXED)))
    assert "-arch=sm_89" in text
    assert "989.4" in text


@pytest.mark.parametrize(
    ("words", "first", "count"),
    [
        ("titan", "NVIDIA TITAN V", 2), ("titan v", "NVIDIA TITAN V", 1), ("3060 ti", "NVIDIA GeForce RTX 3060 Ti", 1),
        ("3060ti", "NVIDIA GeForce RTX 3060 Ti", 1), ("a10", "NVIDIA A10", 1), ("h100 t4", "NVIDIA T4", 4),
        ("no such", None, 0), ("b200", "NVIDIA B200", 1),
    ],
)  # fmt: skip
def test_words_that_follow_each_other_are_one_name(words: str, first: str | None, count: int) -> None:
    found = chosen_gpus(known_gpus(), words.split(), None)
    assert (found[0].name if found else None, len(found)) == (first, count)


# The founding guide's table of hardware, and what it says (seed 000, section 0); where it is wrong, what is right.
@pytest.mark.parametrize(
    ("words", "capability", "cuda_min"),
    [
        ("V100", "7.0", "9.0"), ("Titan V", "7.0", "9.0"), ("A100", "8.0", "11.0"), ("A30", "8.0", "11.0"),
        ("RTX 30系列", "8.6", "11.1"), ("RTX 30", "8.6", "11.1"), ("H100", "9.0", "11.8"), ("B200", "10.0", "12.8"),
    ],
)  # fmt: skip
def test_every_model_of_the_guides_table_answers(words: str, capability: str, cuda_min: str) -> None:
    found = chosen_gpus(known_gpus(), words.split(), None)
    assert {(gpu.compute_capability, gpu.cuda_min) for gpu in found} == {(capability, cuda_min)}


def test_every_generation_of_geforce_since_turing_is_there() -> None:
    for series, least in (("16", 6), ("20", 8), ("30", 10), ("40", 9), ("50", 7)):
        assert len(chosen_gpus(known_gpus(), ["rtx" if series != "16" else "gtx", series], None)) >= least, series


def test_what_the_table_does_not_know_is_the_drivers() -> None:
    """A model without peaks and bandwidth in the table: FP32 and bandwidth come from the clocks, with their source."""
    lacking = next(
        d for d in known_devices() if d.vendor == "nvidia" and not d.peaks and d.multiprocessors and d.matches
    )
    here = replace(machines.H200, name=lacking.matches[0], multiprocessors=lacking.multiprocessors,
                   memory_bytes=int(0.95 * (lacking.memory_bytes or 1 << 33)),
                   compute_capability=lacking.compute_capability)  # fmt: skip
    (gpu,) = gpus_here(replace(machines.ONE, devices=(here,))).gpus
    assert (gpu.name, gpu.kind) == (lacking.name, lacking.kind)
    assert set(gpu.peak_flops) == {"fp32"}
    assert gpu.sources["peak of FP32"] == "computed from the driver's clocks"


def test_memory_decides_between_models_of_one_name() -> None:
    small, large = (device_called("NVIDIA GeForce RTX 4060 Ti", 34, size << 30) for size in (8, 16))
    assert small is not None
    assert large is not None
    assert (small.memory_bytes, large.memory_bytes) == (8 << 30, 16 << 30)
    assert device_called("NVIDIA GeForce RTX 4060 Ti", 34) is None


def test_the_command() -> None:
    result = opscope("gpus", "h100", "--format", "json")
    assert result.returncode == 0
    document = json.loads(result.stdout)
    assert document["schema"] == "opscope.gpus/1"
    assert len(document["gpus"]) == 3
    assert opscope("gpus", "no such").returncode == 1
    assert opscope("gpus", "--format", "csv").stdout.startswith("GPU,For,Architecture")


@pytest.mark.skipif(sys.platform != "linux", reason="the driver is looked for as Linux does")
def test_without_a_driver_detection_says_so() -> None:
    code = "import ctypes.util; print(ctypes.util.find_library('cuda'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if found != "None":
        pytest.skip("there is a CUDA driver")
    result = opscope("gpus", "--detect")
    assert result.returncode == 3
    assert "there is no CUDA driver" in result.stderr


def test_entries_of_one_name_are_told_apart_by_size_or_memory() -> None:
    """Otherwise neither would ever be found."""
    facts = [(name, one.multiprocessors, one.memory_bytes) for one in known_devices() for name in one.matches]
    assert [one for one, count in Counter(facts).items() if count > 1] == []


def test_entries_read_one_by_one_are_those_of_the_whole_table() -> None:
    text = (ROOT / "src" / "opscope" / "knowledge" / "data" / "devices.toml").read_text()
    whole = tomllib.loads(text)["device"]
    assert [msgspec.to_builtins(device)["name"] for device in known_devices()] == [entry["name"] for entry in whole]
    for entry in whole:
        for name in entry["matches"]:
            assert is_listed(name)
            assert (
                device_called(name, entry.get("multiprocessors")) is not None
                or sum(name in other["matches"] for other in whole) > 1
            )
    assert not is_listed("NVIDIA H2")
