"""What accounts have left."""

from collections.abc import Iterable

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from stoker.server.telemetry.recorder import Source
from stoker.store.db import Database
from stoker.tenancy.usage import balances, money


def balances_left(database: Database) -> Source:
    """Of all accounts, what was used until the last tick paid for."""

    async def collect() -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "stoker_credits_balance", "Credits that an account has left.", labels=["account"]
        )
        async with database.reading() as session:
            for left in await balances.left_of(session):
                family.add_metric([left.account_id], left.microcredits / money.MICRO)
        return [family]

    return collect
