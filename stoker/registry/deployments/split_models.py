"""Checks whether a model can be spread over several GPUs."""

from stoker.base.errors import InvalidRequestError
from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import MAX_DEVICES
from stoker.registry.artifacts import repository as artifacts
from stoker.registry.deployments.estimates import SourceFolder
from stoker.store.db import Session
from stoker.store.tables.artifacts import Artifact
from stoker.store.tables.deployments import Deployment


async def check_changed(session: Session, row: Deployment, folder: SourceFolder | None) -> None:
    """Does the same as `check`, for a deployment that changes.

    Args:
        folder: operator's folder of the deployment. None if it was created from an artifact.
    """
    heads = folder.inspection.attention_heads if folder else 0
    if folder is None:
        artifact = await artifacts.get(session, row.account_id, str(row.artifact_id))
        heads = heads_of(artifact) if artifact else 0
    check(heads, row)


def heads_of(artifact: Artifact) -> int:
    """Returns the attention heads of an artifact's model. 0 if it was inspected before they were
    recorded.
    """
    return int((artifact.inspection or {}).get("attention_heads", 0))


def check(heads: int, row: Deployment) -> None:
    """Raises `InvalidRequestError` if the GPUs of a replica would get unequal parts of the model.

    Args:
        heads: attention heads of the model. 0 means unknown.
    """
    record = ENGINES.get(row.engine)
    option = record.devices_option if record else ""
    count = row.config.get(option) or 1
    if not heads or count == 1 or heads % count == 0:
        return
    counts = [str(n) for n in range(1, min(heads, MAX_DEVICES) + 1) if heads % n == 0]
    choices = " or ".join([", ".join(counts[:-1]), counts[-1]] if len(counts) > 1 else counts)
    raise InvalidRequestError(
        f"The model has {heads} attention heads, which {count} GPUs cannot share equally: set "
        f"'{option}' to {choices}.",
        param=f"config.{option}",
    )
