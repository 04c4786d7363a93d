"""The parts that all resources use: database, blobs, runtime and the platform of these."""

from stoker.base.config import MIB, Settings
from stoker.base.ids import Prefix, new_id
from stoker.inspection import Inspectors
from stoker.media.collect import Collector
from stoker.media.fetch import Fetcher
from stoker.platform.parts import ServerParts
from stoker.platform.quotas.service import QuotaService
from stoker.platform.resource import Resource
from stoker.platform.web.context import Platform
from stoker.registry.deployments.folders import ModelFolders
from stoker.registry.deployments.loaded import LoadedVersions
from stoker.runtime import choose
from stoker.server.background import Background
from stoker.server.garbage import Garbage
from stoker.store.blobs import Blobs, open_blobs
from stoker.store.db import Database
from stoker.store.secret import ServerSecret
from stoker.store.servers import Servers
from stoker.tenancy.usage.balances import CreditCheck


def _platform(parts: ServerParts) -> Platform:
    settings = parts.get(Settings)
    build_runtime = choose.builder(settings.runtime)
    data_dir = settings.data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Platform(
        settings=settings,
        quotas=parts.get(QuotaService),
        database=parts.get(Database),
        blobs=parts.get(Blobs),
        secret=ServerSecret(data_dir, given=settings.given_secret, waits=True),
        media=_media(settings),
        inspectors=parts.get(Inspectors),
        runtime=build_runtime(settings, parts.get(ModelFolders), parts.get(CreditCheck).exhausted),
    )


def _database(parts: ServerParts) -> Database:
    url = parts.get(Settings).resolved_database_url
    return Database(url, server_id=new_id(Prefix.SERVER))


def _servers(parts: ServerParts) -> Servers:
    shared = parts.get(Database)
    # Heartbeats use a separate connection: a server that waits for a shared one would be considered
    # lost.
    database = Database(shared.url, server_id=shared.server_id, connections=1)
    return Servers(database, loaded=parts.get(LoadedVersions).ids)


def _blobs(parts: ServerParts) -> Blobs:
    settings = parts.get(Settings)
    data_dir = settings.data_dir.resolve()
    return open_blobs(settings.blob_url, data_dir, timeout_s=settings.blob_timeout_s)


def _quotas(parts: ServerParts) -> QuotaService:
    return QuotaService(parts.get(Settings))


def _inspectors(parts: ServerParts) -> Inspectors:
    settings = parts.get(Settings)
    return Inspectors(
        memory_bytes=settings.inspection_memory_mib * MIB,
        deadline_s=settings.inspection_timeout_s,
    )


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


def _background(_parts: ServerParts) -> Background:
    return Background()


RESOURCE = Resource(
    name="foundation",
    parts=[_platform, _database, _servers, _blobs, _quotas, _inspectors, _background],
    tasks={"garbage": lambda _parts: Garbage().run()},
    closing={
        "media": lambda parts: parts.get(Platform).media.close(),
        "inspections": lambda parts: parts.get(Platform).inspectors.close(),
    },
)
