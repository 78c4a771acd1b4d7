"""The driver is asked in a process of its own: one that crashes, ends the process or talks does no harm."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from opscope.machine.driver import driver, module_release
from tests.command import opscope
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the driver of this test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("driver")
    source = ROOT / "tests" / "data" / "machines" / "libcuda.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(place / "libcuda.so.1"), str(source)], check=True)
    return place


@pytest.fixture
def fake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return monkeypatch


def test_devices_are_listed_whatever_the_driver_prints(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FAKE_COUNT", "8")
    found = driver()
    assert found.error is None
    assert (found.cuda, len(found.devices)) == ("13.0", 8)
    assert found.devices[7].index == 7
    assert (found.devices[0].name, found.devices[0].compute_capability) == ("NVIDIA H200", "9.0")
    assert found.devices[0].multiprocessors == 132


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("100", "cuInit failed: no CUDA-capable device is detected (CUDA error 100)"),
        ("803", "CUDA error 803"),
        ("crash", "the driver crashed (SIGSEGV)"),
        ("abort", "the driver crashed (SIGABRT)"),
        ("exit", "ended the process that asked it, with exit code 0"),
    ],
)
def test_a_driver_that_fails_says_how(fake: pytest.MonkeyPatch, init: str, said: str) -> None:
    fake.setenv("FAKE_INIT", init)
    found = driver()
    assert found.devices == ()
    assert said in (found.error or "")


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.26  Release Build", "570.26"),
        ("GCC version:  gcc version 12.2.0", None),
    ],
)
def test_the_module_names_its_release(text: str, release: str | None) -> None:
    assert module_release(text) == release


def test_modules_of_the_current_folder_are_not_taken_for_pythons(fake: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ctypes.py").write_text("raise RuntimeError('not this one')")
    fake.chdir(tmp_path)
    assert driver().error is None


def test_the_commands_show_it(folder: Path) -> None:
    environment = {"LD_LIBRARY_PATH": str(folder), "FAKE_NAME": "NVIDIA H200 MIG 1g.18gb"}
    result = opscope("gpus", "--detect", "--format", "json", env=environment)
    assert result.returncode == 0, result.stderr
    (gpu,) = json.loads(result.stdout)["gpus"]
    assert "slice" in gpu["note"]
    assert opscope("gpus", "--detect", env=environment | {"FAKE_INIT": "crash"}).returncode == 3
    launch = opscope("kernel", "launch", "--grid", "1", "--block", "1", env={"LD_LIBRARY_PATH": str(folder)})
    assert launch.stdout.startswith("NVIDIA H200 (compute capability 9.0)")
