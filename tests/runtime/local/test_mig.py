"""MIG instances count as devices.

The samples follow outputs of `nvidia-smi -L` and `nvidia-smi -q -x` with drivers 535 to 575, as
shown in NVIDIA's MIG user guide (Getting Started with MIG; Device Names) and in the tests of public
exporters for A100, H100 and RTX PRO 6000. Drivers before 470 write `MIG-GPU-UUID/GI/CI`.
"""

from pathlib import Path

import pytest

from stoker.base.config import MIB
from stoker.runtime.local.memory.devices import DriverDevices, read_table, visible
from stoker.runtime.local.memory.mig import MigInstance, read_instances
from tests.support.driver_program import DriverProgram

WHOLE = "GPU-9de3d0e8-33f5-10dc-0c79-2c88a7ab0a23"
PARENT = "GPU-b614723c-e261-4605-066e-79daab4c00ff"
LARGE = "MIG-dc34c2fd-4bd7-52ad-a6d0-645dcd1794e4"
SMALL = "MIG-000d40d3-5924-5906-9879-8b69bf58689b"
TABLE = f"""\
{WHOLE}, NVIDIA L4, 23034, 1, 575.57.08, [N/A]
{PARENT}, NVIDIA A100-SXM4-80GB, 81920, [N/A], 575.57.08, Enabled
"""
LISTING = f"""\
GPU 0: NVIDIA L4 (UUID: {WHOLE})
GPU 1: NVIDIA A100-SXM4-80GB (UUID: {PARENT})
  MIG 3g.40gb     Device  0: (UUID: {LARGE})
  MIG 1g.10gb     Device  1: (UUID: {SMALL})
"""
REPORT = f"""\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
    <driver_version>575.57.08</driver_version>
    <attached_gpus>2</attached_gpus>
    <gpu id="00000000:00:08.0">
        <mig_mode><current_mig>N/A</current_mig><pending_mig>N/A</pending_mig></mig_mode>
        <mig_devices>
            None
        </mig_devices>
        <uuid>{WHOLE}</uuid>
    </gpu>
    <gpu id="00000000:00:09.0">
        <mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
        <mig_devices>
            <mig_device>
                <index>0</index>
                <gpu_instance_id>1</gpu_instance_id>
                <compute_instance_id>0</compute_instance_id>
                <fb_memory_usage>
                    <total>40448 MiB</total>
                    <reserved>0 MiB</reserved>
                    <used>298 MiB</used>
                    <free>40151 MiB</free>
                </fb_memory_usage>
            </mig_device>
            <mig_device>
                <index>1</index>
                <gpu_instance_id>7</gpu_instance_id>
                <compute_instance_id>0</compute_instance_id>
                <fb_memory_usage>
                    <total>9856 MiB</total>
                    <used>N/A</used>
                </fb_memory_usage>
            </mig_device>
        </mig_devices>
        <uuid>{PARENT}</uuid>
    </gpu>
</nvidia_smi_log>
"""


def uuids(visible_devices: str | None) -> list[str]:
    table = read_table(TABLE, visible_devices, read_instances(LISTING, REPORT))
    return [device.uuid for device in table]


def test_they_are_devices_with_their_memory() -> None:
    whole, large, small = read_table(TABLE, None, read_instances(LISTING, REPORT))
    assert (whole.index, whole.uuid, whole.total_bytes) == (0, WHOLE, 23034 * MIB)
    assert (large.index, large.uuid) == (1, LARGE)
    assert large.name == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    assert (large.total_bytes, large.used_bytes) == (40448 * MIB, 298 * MIB)
    assert (small.index, small.total_bytes, small.used_bytes) == (2, 9856 * MIB, None)
    assert visible([large]) == LARGE, "CUDA selects an instance by its UUID"


@pytest.mark.parametrize(
    ("selected", "expected"),
    [
        (None, [WHOLE, LARGE, SMALL]),
        (SMALL, [SMALL]),
        (f"{SMALL},{WHOLE}", [SMALL, WHOLE]),
        ("1", [LARGE, SMALL]),
        (PARENT, [LARGE, SMALL]),
        ("0,1", [WHOLE, LARGE, SMALL]),
        ("MIG-dc34", [LARGE]),
        ("MIG-", []),
        ("2", []),
    ],
)
def test_those_that_the_server_may_use(selected: str | None, expected: list[str]) -> None:
    assert uuids(selected) == expected


def test_old_drivers_name_the_parent() -> None:
    old = f"MIG-{PARENT}/2/0"
    listing = f"GPU 0: A100-PCIE-40GB (UUID: {PARENT})\n  MIG 2g.10gb Device 0: (UUID: {old})\n"
    (instance,) = read_instances(listing, "")[PARENT]
    assert instance == MigInstance(
        uuid=old, profile="2g.10gb", total_bytes=10 << 30, used_bytes=None
    ), "without a report, the profile tells the memory"


def test_compute_instances_share_the_memory_of_their_gpu_instance() -> None:
    listing = LISTING.replace("3g.40gb", "1c.3g.40gb").replace("1g.10gb", "2c.3g.40gb")
    report = REPORT.replace(
        "<gpu_instance_id>7<", "<gpu_instance_id>1<"
    ).replace("9856 MiB", "40448 MiB")  # fmt: skip
    first, second = read_instances(listing, report)[PARENT]
    assert first.total_bytes == second.total_bytes == 40448 * MIB // 2


@pytest.mark.parametrize("report", ["", "<nvidia_smi_log>", "<x/>", REPORT.replace("MiB", "GB")])
def test_an_unreadable_report(report: str) -> None:
    large, small = read_instances(LISTING, report)[PARENT]
    assert (large.total_bytes, small.total_bytes) == (40 << 30, 10 << 30)


def test_a_gpu_without_instances_is_no_device() -> None:
    """CUDA cannot use a GPU in MIG mode as a whole."""
    listing = "".join(f"{line}\n" for line in LISTING.splitlines() if "MIG " not in line)
    table = read_table(TABLE, None, read_instances(listing, ""))
    assert [device.uuid for device in table] == [WHOLE]


def test_the_program_is_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = DriverProgram(tmp_path)
    program.write(devices=TABLE, list=LISTING, report=REPORT)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [device.uuid for device in DriverDevices().table()] == [WHOLE, LARGE, SMALL]
