"""Metric of the lengths of the job queues."""

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from stoker.platform.jobs import repository
from stoker.platform.resource import Source
from stoker.store.db import Database
from stoker.store.tables.jobs import UNFINISHED, Job


def queue_lengths(database: Database, tables: Mapping[str, type[Job]]) -> Source:
    """Returns a source with the queue length of each kind of job, across all servers of the
    database. `tables` maps the name of a kind to its table.
    """

    async def collect() -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "stoker_jobs",
            "Waiting and running jobs of all servers on the database.",
            labels=["kind", "status"],
        )
        for kind, table in tables.items():
            async with database.reading() as session:
                counted = await repository.queues(session, table)
            for status in UNFINISHED:
                family.add_metric([kind, status], counted.get(status, 0))
        return [family]

    return collect
