"""Metric of the accounts' credit balances."""

from collections.abc import Iterable

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from stoker.platform.resource import Source
from stoker.store.db import Database
from stoker.tenancy.usage import balances, money


def balances_left(database: Database) -> Source:
    """Returns a source with the balances of all accounts, as of the last metering tick."""

    async def collect() -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "stoker_credits_balance", "Credits that an account has left.", labels=["account"]
        )
        async with database.reading() as session:
            for balance in await balances.left_of(session):
                family.add_metric([balance.account_id], balance.microcredits / money.MICRO)
        return [family]

    return collect
