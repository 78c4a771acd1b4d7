"""The table of GPUs, and devices as the driver describes them."""

import json
import subprocess
import sys

import pytest

from opscope.knowledge.compute_capabilities import capability_of, compute_capabilities, gencode, sm_of, version_of
from opscope.knowledge.devices import known_devices
from opscope.report.gpus_document import chosen, gpus_here, gpus_table, known_gpus
from opscope.report.tables import as_text
from tests import machines
from tests.cli import opscope


def test_every_model_has_a_known_compute_capability_and_a_source() -> None:
    for gpu in known_gpus():
        assert gpu.sources["figures"]
        if gpu.vendor == "nvidia":
            assert gpu.compute_capability in compute_capabilities()
            assert gpu.flag == f"-arch=sm_{gpu.compute_capability.replace('.', '')}"
        assert gpu.sms > 0
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
        if known is None or gpu.boost_clock_mhz is None or "fp32" not in gpu.peak_flops:
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
    assert [gpu.name for gpu in chosen(known_gpus(), ["4090"], None)] == ["NVIDIA GeForce RTX 4090"]
    assert {gpu.architecture for gpu in chosen(known_gpus(), [], "hopper")} == {"Hopper"}
    assert chosen(known_gpus(), [], "sm_90") == chosen(known_gpus(), [], "9.0")
    assert chosen(known_gpus(), ["no such"], None) == ()
    text = as_text(gpus_table(gpus_here(machines.MIXED)))
    assert "-arch=sm_89" in text
    assert "989.4" in text


def test_the_command() -> None:
    result = opscope("gpus", "h100", "--format", "json")
    assert result.returncode == 0
    document = json.loads(result.stdout)
    assert document["schema"] == "opscope.gpus/1"
    assert len(document["gpus"]) == 3
    assert opscope("gpus", "no such").returncode == 1
    assert opscope("gpus", "--format", "csv").stdout.startswith("GPU,Architecture")


@pytest.mark.skipif(sys.platform != "linux", reason="the driver is looked for as Linux does")
def test_without_a_driver_detection_says_so() -> None:
    code = "import ctypes.util; print(ctypes.util.find_library('cuda'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if found != "None":
        pytest.skip("there is a CUDA driver")
    result = opscope("gpus", "--detect")
    assert result.returncode == 3
    assert "there is no CUDA driver" in result.stderr
