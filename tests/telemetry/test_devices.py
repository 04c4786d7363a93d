"""Metrics of GPUs and of the replicas on them."""

from datetime import UTC, datetime

from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.observed import (
    DeploymentStats,
    DeviceStats,
    MachineStats,
    Reason,
    ReplicaStats,
    Status,
)
from stoker.server.telemetry import families
from stoker.server.telemetry.nodes import of_devices
from stoker.server.telemetry.tally import DeploymentTally, MetricsRow

GIB = 1 << 30


def replica(name: str, device: str, used: int | None, held: int) -> ReplicaStats:
    return ReplicaStats(
        id=name,
        status=Status.READY,
        pid=1,
        outstanding=0,
        memory_bytes=1,
        progress=1.0,
        engine="torch",
        device=device,
        device_bytes=used,
        device_held_bytes=held,
    )


def test_replicas_report_the_memory_of_their_device() -> None:
    entry = DirectoryEntry(
        deployment_id="dep_1",
        version_id="ver_1",
        account_id="acc_1",
        model="tagger",
        pipeline="token-classification",
        readiness="cold",
        source="upl_1",
        created_at=datetime.now(UTC),
    )
    stats = DeploymentStats(
        status=Status.READY,
        reason=Reason.LOADED,
        message="Ready.",
        replicas=[
            replica("rep_1", "cuda:0", 2 * GIB, 3 * GIB),
            replica("rep_2", "cuda:1", None, GIB),
            replica("rep_3", "cpu", None, 0),
        ],
    )
    row = MetricsRow(entry=entry, tally=DeploymentTally(), stats=stats, held_mib_ms=0)
    known = {family.name: family for family in families.of_replicas([row])}
    used = known["stoker_replica_device_memory_bytes"].samples
    held = known["stoker_replica_device_memory_held_bytes"].samples
    assert [(sample.labels["replica"], sample.value) for sample in used] == [("rep_1", 2 * GIB)]
    assert [(sample.labels["device"], sample.value) for sample in held] == [
        ("cuda:0", 3 * GIB),
        ("cuda:1", GIB),
    ]
    assert (used[0].labels["account"], used[0].labels["model"]) == ("acc_1", "tagger")


def test_devices_report_their_memory() -> None:
    device = DeviceStats(
        index=2,
        name="NVIDIA L4",
        uuid="GPU-1",
        total_bytes=24 * GIB,
        budget_bytes=20 * GIB,
        held_bytes=5 * GIB,
        used_bytes=6 * GIB,
        other_bytes=GIB,
        prepared_workers=1,
    )
    machine = MachineStats(devices=[device])
    known = {family.name: family.samples for family in of_devices([(("n", "node_1"), machine)])}
    assert known.pop("stoker_device_prepared_workers")[0].value == 1
    values = {
        name.removeprefix("stoker_device_memory_").removesuffix("_bytes"): samples[0].value / GIB
        for name, samples in known.items()
    }
    assert values == {"total": 24, "budget": 20, "held": 5, "used": 6, "other": 1}
    labels = known["stoker_device_memory_used_bytes"][0].labels
    assert labels == {
        "node": "n",
        "id": "node_1",
        "device": "cuda:2",
        "name": "NVIDIA L4",
        "uuid": "GPU-1",
    }
