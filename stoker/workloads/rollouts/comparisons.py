"""How the answers of versions compare, as it is kept: across restarts, and by several servers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from sqlalchemy import select

from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.secret import ServerSecret
from stoker.store.tables.deployments import DeploymentVersion, VersionComparison
from stoker.workloads.rollouts.tally import Tally

EXAMPLES = 10
"""Of a version, the last ones."""

Pair = tuple[str, str]
"""A version that got copies, and the one that was live."""


class Example(TypedDict):
    """A call that two versions have answered otherwise."""

    at: float
    """Unix seconds."""
    request: str
    live: str
    mirror: str


@dataclass
class Found:
    """Of one pair."""

    tally: Tally = field(default_factory=Tally)
    examples: list[Example] = field(default_factory=list[Example])
    """The oldest first. They hold what callers sent, so they are sealed where they are kept."""

    def show(self, example: Example) -> None:
        self.examples.append(example)
        del self.examples[:-EXAMPLES]


async def write(
    session: Session, secret: ServerSecret, found: Mapping[Pair, tuple[str, Found]]
) -> None:
    """What one server has counted, each under its own id: written again, it takes the place of
    what was written before. What became of a version that is gone is dropped.
    """
    known = await session.scalars(
        select(DeploymentVersion.id).where(DeploymentVersion.id.in_({one for one, _ in found}))
    )
    there = set(known)
    for (version_id, live_id), (identifier, one) in found.items():
        if version_id not in there:
            continue
        row = await session.get(VersionComparison, identifier)
        if row is None:
            row = VersionComparison(id=identifier, version_id=version_id, live_version_id=live_id)
            session.add(row)
        row.tally = one.tally.as_json()
        row.examples = secret.seal(json.dumps(one.examples).encode()) if one.examples else None
        row.updated_at = db.now()


async def read(database: Database, secret: ServerSecret, pair: Pair, besides: str | None) -> Found:
    """What all servers have counted of a pair, but for one row."""
    async with database.reading() as session:
        statement = select(VersionComparison).where(
            VersionComparison.version_id == pair[0], VersionComparison.live_version_id == pair[1]
        )
        rows = (await session.scalars(statement.order_by(VersionComparison.id))).all()
    found = Found()
    for row in rows:
        if row.id != besides:
            found.tally.merge(Tally.of(row.tally))
            found.examples += _unsealed(secret, row.examples)
    return found


def _unsealed(secret: ServerSecret, sealed: bytes | None) -> Sequence[Example]:
    """None, where another server's secret has sealed them."""
    content = secret.unseal(sealed) if sealed else None
    made: Any = json.loads(content) if content else []
    return made
