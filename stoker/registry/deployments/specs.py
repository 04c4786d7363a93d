"""Builds the specifications and directory entries of a deployment and its versions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stoker.models.engines.record import INT8, TF32
from stoker.registry.deployments import estimates
from stoker.registry.deployments.directory import DirectoryEntry, VersionShare
from stoker.registry.deployments.folders import FOLDER, merged_source
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.store.tables.deployments import (
    Deployment,
    DeploymentVersion,
    Desired,
    Variant,
    VersionStatus,
)
from stoker.wire.generation_request import AdapterName

CALLABLE = (VersionStatus.LIVE, VersionStatus.READY, VersionStatus.RETIRED)
"""States of versions that passed their checks."""
_SINGLE = frozenset({"float32", TF32, INT8})


def source_of(row: Variant) -> str:
    """Returns the source in the form of `DeploymentSpec.source`."""
    if row.base_source:
        # If single precision is requested, or is the source of later rounding, the merge rounds
        # nothing.
        is_single = row.dtype in _SINGLE
        return merged_source(str(row.upload_id), row.base_source, is_single=is_single)
    return row.upload_id or f"{FOLDER}{row.source}"


def spec_of(row: Deployment, version: DeploymentVersion | None = None) -> DeploymentSpec:
    """Returns the specification of a deployment's live version, or of another version as if it were
    live.
    """
    runs: Deployment | DeploymentVersion = version or row
    return DeploymentSpec(
        id=version.id if version else row.live_version_id,
        deployment_id=row.id,
        account_id=row.account_id,
        model=row.model,
        pipeline=row.pipeline,
        source=source_of(runs),
        readiness=Readiness.of(row.readiness),
        engine=runs.engine,
        device=runs.device,
        dtype=runs.dtype,
        min_replicas=row.min_replicas,
        max_replicas=row.max_replicas,
        idle_timeout_s=row.idle_timeout_s,
        max_queue=row.max_queue,
        memory_bytes=runs.memory_bytes or 0,
        weight_bytes=_weight_bytes(runs),
        config=runs.config,
        has_adapters=row.has_adapters,
    )


def _weight_bytes(runs: Deployment | DeploymentVersion) -> int:
    """Returns `DeploymentSpec.weight_bytes`."""
    # A merged adapter begins with the value of its base, measured or not.
    is_estimated = not runs.is_measured and not runs.base_source
    return estimates.weight_bytes(runs.memory_bytes or 0) if is_estimated else 0


def prepared_spec(row: Deployment, version: DeploymentVersion) -> DeploymentSpec:
    """Returns the specification of a version that is about to take over. The version is fully
    loaded, but no memory is reserved for it.
    """
    return replace(spec_of(row, version), readiness=Readiness.WARM)


def kept_spec(row: Deployment, version: DeploymentVersion) -> DeploymentSpec:
    """Returns the specification of a version that is not live. The version stays loaded for a while
    if memory allows.
    """
    return replace(
        spec_of(row, version),
        readiness=Readiness.COLD,
        min_replicas=0,
        idle_timeout_s=row.keep_s,
    )


def _shares(traffic: Mapping[str, Any], name: str) -> tuple[VersionShare, ...]:
    percents: Mapping[str, int] = traffic.get(name) or {}
    return tuple(VersionShare(*share) for share in sorted(percents.items()))


def entry_of(row: Deployment, versions: Sequence[DeploymentVersion]) -> DirectoryEntry:
    traffic = row.traffic or {}
    return DirectoryEntry(
        deployment_id=row.id,
        version_id=row.live_version_id,
        account_id=row.account_id,
        model=row.model,
        pipeline=row.pipeline,
        readiness=row.readiness,
        source=source_of(row),
        created_at=row.created_at,
        callable_versions=frozenset(
            version.id for version in versions if version.state in CALLABLE
        ),
        sources=tuple(
            (version.id, source_of(version)) for version in versions if version.state in CALLABLE
        ),
        shares=_shares(traffic, "weights"),
        mirrors=_shares(traffic, "mirror"),
        keeps_examples=traffic.get("examples", False),
        sticky=traffic.get("sticky", "none"),
        base_id=row.shares or "",
        adapter=_adapter_of(row),
        is_stopped=row.shares is not None and row.desired == Desired.STOPPED,
    )


def _adapter_of(row: Deployment) -> AdapterName | None:
    if row.shares is None:
        return None
    return AdapterName(folder=row.id, deployment_id=row.id, model=row.model)
