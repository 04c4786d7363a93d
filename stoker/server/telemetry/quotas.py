"""Metrics of the accounts' quotas and their usage."""

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.platform.quotas import repository
from stoker.platform.quotas.limits import Quota
from stoker.platform.quotas.service import QuotaService
from stoker.platform.resource import Source
from stoker.store.db import Database


def quotas_used(database: Database, quotas: QuotaService) -> Source:
    async def collect() -> Iterable[Metric]:
        has = GaugeMetricFamily(
            "stoker_quota_used",
            "Usage of a quota by an account.",
            labels=["account", "quota"],
        )
        refused = CounterMetricFamily(
            "stoker_quota_refusals",
            "Requests rejected because of an account's limit.",
            labels=["quota"],
        )
        for quota in Quota:
            async with database.reading() as session:
                for account, amount in (await repository.used_by_all(session, quota)).items():
                    has.add_metric([account, quota], amount)
            refused.add_metric([quota], quotas.refused[quota])
        return [has, refused]

    return collect
