"""All services of a server: builds, starts and stops them. Requests find them as parts."""

import functools
import logging
from dataclasses import dataclass
from typing import Any

from stoker.base.config import MIB, Settings
from stoker.base.ids import Prefix, new_id
from stoker.inference.calls import Calls
from stoker.inspection import Inspectors
from stoker.media.collect import Collector
from stoker.media.fetch import Fetcher
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.quotas.service import QuotaService
from stoker.platform.web.context import Platform
from stoker.registry.artifacts.imports.context import ImportContext
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.directory import Directory
from stoker.registry.deployments.folders import ModelFolders
from stoker.registry.deployments.loaded import LoadedVersions
from stoker.registry.hub.client import Hub
from stoker.runtime import choose
from stoker.runtime.interface import Runtime
from stoker.runtime.observed import Status
from stoker.server.background import Background
from stoker.server.console.attempts import Attempts
from stoker.server.console.built import Pages
from stoker.server.console.context import ConsoleContext
from stoker.server.erasure.context import ErasureContext
from stoker.server.events.broadcast import Broadcast
from stoker.server.events.context import WatchContext
from stoker.server.events.history import History
from stoker.server.events.objects import Contexts
from stoker.server.telemetry import traces
from stoker.server.telemetry.credits import balances_left
from stoker.server.telemetry.jobs import queue_lengths
from stoker.server.telemetry.loop_watch import LoopWatch
from stoker.server.telemetry.nodes import of_nodes
from stoker.server.telemetry.quotas import quotas_used
from stoker.server.telemetry.recorder import Metrics
from stoker.server.telemetry.traces import Traces
from stoker.store.blobs import open_blobs
from stoker.store.db import Database
from stoker.store.secret import ServerSecret
from stoker.store.servers import Servers
from stoker.store.tables.agents import Run
from stoker.store.tables.deployments import DeploymentVersion
from stoker.store.tables.imports import Import
from stoker.store.tables.trials import Trial
from stoker.store.tables.videos import Video
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.limits import RateLimits
from stoker.tenancy.keys.sessions import Sessions
from stoker.tenancy.keys.shared_limits import SharedLimits
from stoker.tenancy.usage.balances import CreditCheck
from stoker.tenancy.usage.counts import Counts
from stoker.tenancy.usage.metering import Metering
from stoker.workloads.agents import context as agents
from stoker.workloads.agents.context import AgentContext
from stoker.workloads.evaluation.checks.context import CheckContext
from stoker.workloads.evaluation.checks.judges import Judges
from stoker.workloads.evaluation.replay.comparer import Comparer
from stoker.workloads.evaluation.trials.context import TrialContext
from stoker.workloads.rollouts.context import VersionContext
from stoker.workloads.rollouts.mirroring import Mirrors
from stoker.workloads.videos.context import VideoContext

log = logging.getLogger(__name__)

IMPORTS_AT_ONCE = 16
"""Maximum number of concurrent imports. They mostly wait for a hub."""
IMPORT_TURN_S = 600.0
"""Seconds for which an import keeps its slot while another account waits. It later continues from
the same point.
"""
VERSIONS_AT_ONCE = 8
"""Maximum number of concurrent rollouts of all accounts, which take turns."""


@dataclass(frozen=True, kw_only=True)
class Services:
    platform: Platform
    servers: Servers
    loaded: LoadedVersions
    keyring: Keyring
    rate_limits: RateLimits
    credits: CreditCheck
    counts: Counts
    metering: Metering
    metrics: Metrics
    loop_watch: LoopWatch
    traces: Traces | None
    calls: Calls
    imports: ImportContext
    deployments: DeploymentContext
    versions: VersionContext
    checks: CheckContext
    trials: TrialContext
    videos: VideoContext
    agents: AgentContext
    console: ConsoleContext
    watching: WatchContext
    background: Background

    @functools.cached_property
    def erasure(self) -> ErasureContext:
        return ErasureContext(
            **vars(self.platform),
            deployments=self.deployments,
            agents=self.agents,
            sessions=self.console.sessions,
            credits=self.credits,
            broadcast=self.watching.broadcast,
            runners=self.runners,
        )

    @property
    def runners(self) -> list[JobRunner[Any, Any]]:
        job_runners = (self.imports.jobs, self.trials.jobs, self.videos.jobs, self.agents.jobs)
        return [self.deployments.preparing, *job_runners]

    def end_streams(self) -> None:
        """Ends all streams because the server stops. Streams may last for days, so the server does
        not wait for them.
        """
        self.agents.followers.end()
        self.watching.broadcast.end()

    def parts(self) -> list[object]:
        """Returns the services that handlers can request."""
        resources = (
            self.imports,
            self.deployments,
            self.versions,
            self.checks,
            self.trials,
            self.videos,
            self.agents,
            self.console,
            self.watching,
            self.erasure,
        )
        return [
            self.platform,
            self.calls,
            *resources,
            self.keyring,
            self.console.sessions,
            self.rate_limits,
            self.credits,
            self.metrics,
            self.background,
        ]


def build_services(settings: Settings) -> Services:
    build_runtime = choose.builder(settings.runtime)
    data_dir = settings.data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    server_id = new_id(Prefix.SERVER)
    database = Database(settings.resolved_database_url, server_id=server_id)
    # Heartbeats use a separate connection: a server that waits for a shared one would be considered
    # lost.
    heartbeat_database, loaded = (
        Database(database.url, server_id=server_id, connections=1),
        LoadedVersions(),
    )
    servers = Servers(heartbeat_database, loaded=loaded.ids)
    blobs = open_blobs(settings.blob_url, data_dir, timeout_s=settings.blob_timeout_s)
    known, counts, directory = CreditCheck(), Counts(), Directory()
    limits = RateLimits()
    if not database.is_sqlite:
        limits = SharedLimits(database, lambda: servers.count)
    quotas = QuotaService(settings)
    inspectors = Inspectors(
        memory_bytes=settings.inspection_memory_mib * MIB,
        deadline_s=settings.inspection_timeout_s,
    )
    folders = ModelFolders(settings, database, blobs, quotas, inspectors)
    runtime = build_runtime(settings, folders, known.exhausted)
    folders.copies.runs = lambda spec_id: bool((s := runtime.stats(spec_id)) and s.replicas)
    folders.merged.runs = folders.copies.runs
    platform = Platform(
        settings=settings,
        quotas=quotas,
        database=database,
        blobs=blobs,
        secret=ServerSecret(data_dir, given=settings.given_secret, waits=True),
        media=_media(settings),
        inspectors=inspectors,
        runtime=runtime,
    )
    deployed = DeploymentContext(
        **vars(platform),
        directory=directory,
        folders=folders,
        preparing=JobRunner(
            database,
            lease_s=settings.job_lease_s,
            at_once=VERSIONS_AT_ONCE,
            share=lambda _: 1,
        ),
    )
    keyring = Keyring(database, settings.key_cache_s)
    comparer = Comparer()
    mirrors = Mirrors(
        runtime,
        comparer,
        database,
        platform.secret,
        wait_s=settings.wait_max_s,
        timeout_s=settings.inference_timeout_s,
    )
    calls = Calls(**vars(platform), directory=directory, credits=known, mirror=mirrors.offer)
    metrics = Metrics(directory, runtime)
    kinds = {
        "video": Video,
        "agent_run": Run,
        "trial": Trial,
        "import": Import,
        "version": DeploymentVersion,
    }
    metrics.add(queue_lengths(database, kinds))
    metrics.add(balances_left(database))
    metrics.add(quotas_used(database, platform.quotas))
    metrics.add(of_nodes(runtime))
    loop_watch = LoopWatch(settings.loop_step_limit_ms / 1000)
    metrics.add(loop_watch.collect)
    filmed = VideoContext(
        **vars(platform),
        calls=calls,
        jobs=JobRunner(
            database,
            lease_s=settings.job_lease_s,
            at_once=settings.jobs_at_once,
            share=lambda deployment_id: _replicas(runtime, directory.live(deployment_id)),
        ),
    )
    history, judges = History(directory, runtime), Judges()
    return Services(
        platform=platform,
        servers=servers,
        loaded=loaded,
        keyring=keyring,
        rate_limits=limits,
        credits=known,
        counts=counts,
        metering=Metering(
            database,
            runtime.meter,
            known,
            counts,
            starting_credits=settings.starting_credits,
            is_first=lambda: servers.is_first,
        ),
        metrics=metrics,
        loop_watch=loop_watch,
        traces=traces.from_environment(),
        calls=calls,
        imports=ImportContext(
            **vars(platform),
            hub=Hub(
                settings.hub_endpoint,
                token=settings.hub_token.get_secret_value() if settings.hub_token else None,
                private_hosts=settings.hub_private_hosts,
            ),
            jobs=JobRunner(
                database,
                lease_s=settings.job_lease_s,
                at_once=IMPORTS_AT_ONCE,
                share=lambda _: 1,
                turn_s=IMPORT_TURN_S,
            ),
        ),
        deployments=deployed,
        versions=VersionContext(**vars(deployed), calls=calls, judges=judges, mirrors=mirrors),
        checks=CheckContext(**vars(platform), calls=calls, judges=judges),
        trials=TrialContext(
            **vars(platform),
            calls=calls,
            comparer=comparer,
            # Only one at a time, because concurrent trials would distort each other's measurements.
            jobs=JobRunner(database, lease_s=settings.job_lease_s, at_once=1, share=lambda _: 1),
        ),
        videos=filmed,
        agents=agents.build(platform, calls, keyring, limits),
        console=ConsoleContext(
            **vars(platform),
            keyring=keyring,
            sessions=Sessions(database, keyring, settings.key_cache_s),
            attempts=Attempts(),
            pages=Pages(),
        ),
        watching=WatchContext(
            **vars(platform),
            directory=directory,
            history=history,
            broadcast=Broadcast(Contexts(deployed, filmed), history),
        ),
        background=Background(),
    )


def _replicas(runtime: Runtime, version_id: str) -> int:
    """Returns the maximum number of concurrent jobs of a deployment: its ready replicas plus one.
    Another replica is started for the additional job if allowed.
    """
    stats = runtime.stats(version_id)
    if stats is None:
        return 1
    ready = sum(replica.status is Status.READY for replica in stats.replicas)
    return min(stats.max_replicas, ready + 1)


def _media(settings: Settings) -> Collector:
    fetcher = Fetcher(
        allowed_hosts=settings.media_hosts,
        allowed_private=settings.media_private_hosts,
        ceiling_s=settings.media_timeout_s,
    )
    return Collector(
        fetcher,
        folders=settings.media_dirs,
        limit_bytes=settings.media_limit_mib * MIB,
        request_bytes=settings.media_request_limit_mib * MIB,
    )
