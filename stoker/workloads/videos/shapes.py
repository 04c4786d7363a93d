"""Size, length and frame rate of a video, computed before any model is loaded."""

import asyncio
import logging
from pathlib import Path

import msgspec

from stoker.base.errors import InvalidRequestError
from stoker.inspection.readers import FolderReader
from stoker.models.diffusion.video.rules import VideoRules, VideoShape, check_amount, rules_of
from stoker.models.stages.base import InputError
from stoker.platform.web.context import Platform
from stoker.registry.artifacts import service as artifacts
from stoker.registry.deployments import repository as deployments
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.wire.video_request import VideoSpec
from stoker.workloads.videos.schemas import VideoCreate

log = logging.getLogger(__name__)

_MAX_CONFIG_BYTES = 1 << 20


async def drawn(platform: Platform, entry: DirectoryEntry, body: VideoCreate) -> VideoShape | None:
    """Returns the shape of the video, or None if the model's files do not define it. Loading such a
    model will fail.

    Raises `InvalidRequestError` for a shape that the model cannot draw.
    """
    try:
        rules = await _rules(platform, entry)
    except (KeyError, OSError, TypeError, ValueError):
        log.warning("video pipeline could not be read", extra={"deployment": entry.deployment_id})
        return None
    try:
        shape = rules.shape(msgspec.convert(body.parameters(), VideoSpec))
        check_amount(shape)
    except InputError as error:
        raise InvalidRequestError(error.message, param=error.field) from error
    return shape


async def _rules(platform: Platform, entry: DirectoryEntry) -> VideoRules:
    async with platform.database.reading() as session:
        row = await deployments.get(session, entry.account_id, entry.deployment_id)
        if row is None:
            raise KeyError(entry.deployment_id)
        keys = {} if row.upload_id is None else await artifacts.files_of(session, row.upload_id)
    source = FolderReader(Path(row.source)) if row.source else platform.blobs.files(keys)
    return await asyncio.to_thread(rules_of, lambda path: source.read(path, 0, _MAX_CONFIG_BYTES))
