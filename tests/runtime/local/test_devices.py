"""Parsing of the devices that the driver's program lists."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.base.config import MIB
from stoker.runtime.local.memory.devices import Device, DeviceNeed, DriverDevices, read_table
from tests.support.driver_program import DriverProgram

GIB = 1024 * MIB
FIRST, SECOND, THIRD = (f"GPU-{letter * 8}-0000-1111-2222-333333333333" for letter in "abc")
ANSWER = f"""\
{FIRST}, NVIDIA H100 80GB HBM3, 81559
{SECOND}, NVIDIA L4, 23034
{THIRD}, NVIDIA L4, 23034
"""


def uuids(answer: str, visible: str | None) -> list[str]:
    return [device.uuid for device in read_table(answer, visible)]


def test_all_of_them() -> None:
    first, second, _ = read_table(ANSWER, None)
    assert first == Device(
        index=0, uuid=FIRST, name="NVIDIA H100 80GB HBM3", total_bytes=81559 * MIB
    )
    assert (second.index, second.total_bytes) == (1, 23034 * MIB)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        f"{FIRST}, NVIDIA GB10, [N/A]\n",
        f"{FIRST}, NVIDIA L4\n",
        f'{FIRST}, "NVIDIA L4, 23034\n',
    ],
)
def test_what_says_nothing_is_none(answer: str) -> None:
    assert read_table(answer, None) == []


def test_one_that_cannot_be_read_is_left_out() -> None:
    broken = "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error\n"
    assert uuids(broken + ANSWER.replace("81559", "[Unknown Error]"), None) == [SECOND, THIRD]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        ("-1", []),
        ("2,0", [THIRD, FIRST]),
        ("1, 2", [SECOND, THIRD]),
        (SECOND, [SECOND]),
        ("GPU-c,GPU-a", [THIRD, FIRST]),
        ("0,7,1", [FIRST]),
        ("0,0", [FIRST]),
        ("GPU-", []),
        ("MIG-aaaaaaaa-0000-1111-2222-333333333333", []),
        ("9" * 30, []),
    ],
)
def test_those_that_the_server_may_use(visible: str, expected: list[str]) -> None:
    """Selects devices as CUDA does by its variable. Their indexes follow this order."""
    assert uuids(ANSWER, visible) == expected
    assert [gpu.index for gpu in read_table(ANSWER, visible)] == list(range(len(expected)))


class TestProgram:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return tmp_path

    def write(self, folder: Path, *lines: str) -> None:
        program = folder / "nvidia-smi"
        program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        program.chmod(0o755)

    def test_is_asked(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write(folder, 'echo "$@" > asked', f"echo '{FIRST}, NVIDIA L4, 23034'")
        monkeypatch.chdir(folder)
        (gpu,) = DriverDevices().table()
        assert (gpu.name, gpu.total_bytes) == ("NVIDIA L4", 23034 * MIB)
        assert (folder / "asked").read_text().split() == [
            "--query-gpu=uuid,name,memory.total,memory.used,driver_version,mig.mode.current",
            "--format=csv,noheader,nounits",
        ]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert DriverDevices().table() == []

    def test_those_beside_a_broken_one(self, folder: Path) -> None:
        self.write(folder, f"echo '{SECOND}, NVIDIA L4, 23034'", "exit 15")
        assert [gpu.uuid for gpu in DriverDevices().table()] == [SECOND]

    def test_is_not_there(self, folder: Path) -> None:
        assert list(DriverDevices().table()) == []

    def test_does_not_answer(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stoker.runtime.local.memory.devices._ANSWER_S", 0.2)
        self.write(folder, "exec sleep 30")
        assert list(DriverDevices().table()) == []


def test_a_share_is_of_each_device() -> None:
    large, small = read_table(ANSWER, "0,1")
    half = DeviceNeed(share=0.5)
    assert half.of(large, large.total_bytes) == large.total_bytes // 2
    assert half.of(small, small.total_bytes) == small.total_bytes // 2
    assert half.of(small, 1000) == 1000, "no more than all together may take"


class TestHangingDriver:
    def test_says_so_and_starts_no_second_program(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.runtime.local.memory.devices._ANSWER_S", 0.2)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        # The shell is killed, but its child keeps the output open.
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\necho run >> runs\nsleep 5\n")
        program.chmod(0o755)
        monkeypatch.chdir(tmp_path)
        devices = DriverDevices()
        started = time.monotonic()
        assert list(devices.table()) == []
        assert time.monotonic() - started < 3
        assert devices.problem == "nvidia-smi did not answer within 0.2 s: the driver hangs."
        assert devices.processes() == {}

    def test_recovers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stoker.runtime.local.memory.devices._ANSWER_S", 0.5)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        program = DriverProgram(tmp_path)
        program.sleeps()
        devices = DriverDevices()
        assert list(devices.table()) == []
        (tmp_path / "sleeps").unlink()
        deadline = time.monotonic() + 10
        while not devices.table():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert devices.problem == ""


def test_processes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = DriverProgram(tmp_path)
    program.write(processes=f"{FIRST}, 4711, 732\n{FIRST}, 4712, [N/A]\n{SECOND}, 4711, 16")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert DriverDevices().processes() == {4711: {FIRST: 732 * MIB, SECOND: 16 * MIB}}


def test_use_and_driver_are_read() -> None:
    (gpu,) = read_table(f"{FIRST}, NVIDIA L4, 23034, 450, 580.95.05, [N/A]\n", None)
    assert (gpu.used_bytes, gpu.kind) == (450 * MIB, "NVIDIA L4 580.95.05")
    (gpu,) = read_table(f"{FIRST}, NVIDIA L4, 23034, [N/A], 580.95.05, [N/A]\n", None)
    assert gpu.used_bytes is None


class TestAdvice:
    TEXT = DeviceNeed(
        size=100 * GIB,
        weights=60 * GIB,
        overhead=GIB,
        small_size=20 * GIB,
        spread_by="'engine' to 'vllm' and 'devices' in 'config'",
    )

    def test_names_the_devices_that_hold_it(self) -> None:
        advice = self.TEXT.advice([25 * GIB, 40 * GIB, 36 * GIB])
        by = "'engine' to 'vllm' and 'devices' in 'config'"
        expected = f"Spread over 2 GPUs it fits: set {by} to 2."
        assert expected in advice and "needs about 20.0 GiB and fits" in advice

    @pytest.mark.parametrize("rooms", [[40 * GIB], [40 * GIB, 10 * GIB]])
    def test_too_few_devices(self, rooms: list[int]) -> None:
        assert "GPUs it fits" not in self.TEXT.advice(rooms)

    def test_the_cpu_if_that_is_possible(self) -> None:
        assert "'cpu'" not in self.TEXT.advice([GIB])
        advice = replace(self.TEXT, may_use_cpu=True).advice([GIB])
        assert advice == "Or set 'device' to 'cpu', where it has room."
