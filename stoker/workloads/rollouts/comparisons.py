"""Stores comparisons of versions' answers across restarts and for several servers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from stoker.registry.deployments import repository as deployment_rows
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.secret import ServerSecret
from stoker.store.tables.deployments import VersionComparison
from stoker.workloads.rollouts import repository
from stoker.workloads.rollouts.tally import ComparisonTally

EXAMPLES = 10
"""Number of latest examples that are kept per version."""

Pair = tuple[str, str]
"""A version that received copies, and the version that was live."""


class Example(TypedDict):
    """A call that two versions answered differently."""

    at: float
    """Unix seconds."""
    request: str
    live: str
    mirror: str


@dataclass
class PairResults:
    """Results of one pair."""

    tally: ComparisonTally = field(default_factory=ComparisonTally)
    examples: list[Example] = field(default_factory=list[Example])
    """Examples, oldest first. They hold callers' data, so they are sealed in storage."""

    def show(self, example: Example) -> None:
        self.examples.append(example)
        del self.examples[:-EXAMPLES]


async def write(
    session: Session, secret: ServerSecret, found: Mapping[Pair, tuple[str, PairResults]]
) -> None:
    """Stores the counts of one server, each under a separate id. A later write replaces the earlier
    one. Counts of a deleted version are dropped.
    """
    version_ids = await deployment_rows.existing_versions(session, {item for item, _ in found})
    for (version_id, live_id), (identifier, item) in found.items():
        if version_id not in version_ids:
            continue
        row = await session.get(VersionComparison, identifier)
        if row is None:
            row = VersionComparison(id=identifier, version_id=version_id, live_version_id=live_id)
            session.add(row)
        row.tally = item.tally.as_json()
        row.examples = secret.seal(json.dumps(item.examples).encode()) if item.examples else None
        row.updated_at = db.now()


async def read(
    database: Database, secret: ServerSecret, pair: Pair, besides: str | None
) -> PairResults:
    """Returns the counts of all servers for a pair, except for one row."""
    async with database.reading() as session:
        rows = await repository.comparisons(session, *pair)
    total = PairResults()
    for row in rows:
        if row.id != besides:
            total.tally.merge(ComparisonTally.of(row.tally))
            total.examples += _unsealed(secret, row.examples)
    return total


def _unsealed(secret: ServerSecret, sealed: bytes | None) -> Sequence[Example]:
    """Returns no examples if another server's secret sealed them."""
    content = secret.unseal(sealed) if sealed else None
    made: Any = json.loads(content) if content else []
    return made
