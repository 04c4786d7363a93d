"""Reports of known rows, by each group and by several, page by page, on both databases."""

from itertools import groupby
from typing import Any

import pytest

from stoker.base.errors import InvalidRequestError
from stoker.base.fairness import CURRENT_CALLER, Party, Tier
from stoker.base.ids import Prefix, new_id
from stoker.platform.web.lists import PageQuery
from stoker.runtime.metering import HOUR_MS
from stoker.store import db
from stoker.store.tables.keys import ApiKey
from stoker.store.tables.usage import UsageCount
from stoker.tenancy.usage import reports
from stoker.tenancy.usage.grouping import Grouping
from stoker.tenancy.usage.repository import UsageSpan
from stoker.tenancy.usage.schemas import HoldingEvent, UsageReport
from tests.usage.support import ACCOUNT, HOUR, Lab

DAYS, MIB_HOUR = 3, HOUR_MS
FIRST_DAY = -(-HOUR // 24)
GROUPED = (
    "deployment",
    "day",
    "hour",
    "key",
    "version",
    "day,deployment",
    "key,day,deployment",
    "tier,day",
)
SPAN = UsageSpan(account_id=ACCOUNT, first=HOUR, end=(FIRST_DAY + DAYS) * 24)


async def keys(lab: Lab) -> list[str]:
    """Adds two keys and returns their ids. The first key has a name."""
    made = [new_id(Prefix.KEY) for _ in range(2)]
    async with lab.database.transaction() as session:
        for number, key in enumerate(made):
            session.add(
                ApiKey(
                    id=key,
                    public_id=f"pub_{key[-20:]}",
                    secret_sha256=b"",
                    scope="account",
                    account_id=ACCOUNT,
                    name=None if number else "shop",
                    created_at=db.now(),
                )
            )
    return made


@pytest.fixture
async def used(lab: Lab) -> dict[str, Any]:
    """Records usage on three days. On each day, two deployments hold 64 and 128 MiB for an hour.
    Each gets one call of the first key and two of the second. The server itself calls the first
    deployment once.
    """
    known = await keys(lab)
    lab.clock.pass_by((FIRST_DAY * 24 - HOUR) * HOUR_MS)
    for day in range(DAYS):
        for number in range(2):
            lab.begin(f"rep_{day}{number}", 64 << number, deployment=f"dep_{number}")
            for caller, key in enumerate(known):
                CURRENT_CALLER.set(Party(ACCOUNT, f"pub_{key[-20:]}"))
                for _ in range(caller + 1):
                    lab.serve(f"dep_{number}", input_tokens=10**day)
        CURRENT_CALLER.set(Party(ACCOUNT))
        lab.serve("dep_0", images=1)
        await lab.tick(HOUR_MS)
        for number in range(2):
            lab.meter.end(f"rep_{day}{number}")
        await lab.tick(23 * HOUR_MS)
    return {"keys": known}


async def report(lab: Lab, group_by: str, **options: Any) -> UsageReport:
    async with lab.database.reading() as session:
        return await reports.usage(session, SPAN, Grouping.of(group_by), **options)


async def rows(lab: Lab, group_by: str, limit: int) -> list[dict[str, Any]]:
    """Returns all rows in pages of `limit` rows. Asserts that each page has the same totals."""
    all_rows: list[dict[str, Any]] = []
    page: str | None = None
    while True:
        page_report = await report(lab, group_by, page=page, limit=limit)
        assert page_report.total == (await report(lab, group_by)).total
        assert len(page_report.data) == limit or not page_report.has_more
        all_rows += [row.model_dump() for row in page_report.data]
        page = page_report.next_page
        assert page_report.has_more == (page is not None)
        if page is None:
            return all_rows


def held(mib: int) -> int:
    return mib * MIB_HOUR


class TestGroups:
    async def test_by_day_and_deployment(self, lab: Lab, used: Any) -> None:
        report_rows = (await report(lab, "day,deployment")).data
        assert [
            (row.start.timestamp() // 86400 - FIRST_DAY, row.deployment_id, row.model)
            for row in report_rows
        ] == [(day, f"dep_{n}", f"model of dep_{n}") for day in range(DAYS) for n in range(2)]
        for place, row in enumerate(report_rows):
            day, number = divmod(place, 2)
            assert (row.end - row.start).total_seconds() == 86400
            assert row.memory_mib_ms == held(64 << number)
            assert row.microcredits == row.memory_microcredits == (62_500 << number)
            assert (row.requests, row.images) == (4 - number, 1 - number)
            assert row.input_tokens == 3 * 10**day
            assert (row.version_id, row.key_id) == (None, None)

    async def test_by_tier(self, lab: Lab, used: Any) -> None:
        """A tier has calls. Memory serves all of them, so it belongs to none."""
        # The span ends now.
        lab.clock.pass_by(-HOUR_MS)
        for tier, times in ((Tier.FLEX, 3), (Tier.PRIORITY, 2)):
            CURRENT_CALLER.set(Party(ACCOUNT, tier=tier))
            for _ in range(times):
                lab.serve("dep_0", input_tokens=7, output_tokens=2)
        async with lab.database.transaction() as session:
            old = {"id": "use_old", "account_id": ACCOUNT, "deployment_id": "dep_0", "model": "m"}
            counts = dict.fromkeys(("errors", "images", "audio_ms", "video_ms"), 0)
            counts |= {"requests": 5, "input_tokens": 1, "output_tokens": 0}
            session.add(UsageCount(**old, **counts, hour=HOUR))
        await lab.tick()
        made = {row.tier: row for row in (await report(lab, "tier")).data}
        assert {tier: (row.requests, row.output_tokens) for tier, row in made.items()} == {
            "default": (3 * 7, 0),
            "flex": (3, 6),
            "priority": (2, 4),
            None: (5, 0),
        }
        assert {tier for tier, row in made.items() if row.memory_mib_ms} == {None}
        assert (made["flex"].deployment_id, made["flex"].model) == (None, None)

    async def test_memory_of_background_work(self, lab: Lab) -> None:
        """Memory at both prices is one sum, with the part of background work shown separately."""
        lab.begin("rep_a", 1_024)
        lab.meter.set_flex("rep_a", is_flex=True)
        await lab.tick(HOUR_MS // 4)
        lab.meter.set_flex("rep_a", is_flex=False)
        await lab.tick(HOUR_MS // 4)
        for _ in range(2):
            (row,) = (await report(lab, "deployment")).data
            assert (row.memory_mib_ms, row.memory_microcredits) == (1_024 * HOUR_MS // 2, 375_000)
            assert (row.flex_mib_ms, row.flex_microcredits) == (1_024 * HOUR_MS // 4, 125_000)
            assert (row.microcredits, row.flex_gib_hours) == (375_000, 0.25)
            by_tier = {row.tier: row for row in (await report(lab, "tier")).data}
            assert by_tier["flex"].microcredits == 125_000
            assert by_tier[None].microcredits == 250_000
            lab.meter.end("rep_a")
            await lab.tick()
        async with lab.database.reading() as session:
            query = PageQuery(limit=10, order="asc")
            listed = (await reports.events(session, SPAN, None, query)).data
        kinds = [event for event in listed if isinstance(event, HoldingEvent)]
        of_kinds = [(event.type, event.subject_id, event.microcredits) for event in kinds]
        assert sorted(of_kinds) == [
            ("flex", "rep_a", 125_000),
            ("memory", "rep_a", 250_000),
        ]

    async def test_in_the_order_that_is_asked_for(self, lab: Lab, used: Any) -> None:
        report_rows = (await report(lab, "deployment,day")).data
        assert [row.deployment_id for row in report_rows] == ["dep_0"] * DAYS + ["dep_1"] * DAYS
        by_day = await report(lab, "day,deployment")
        assert sorted(map(repr, report_rows)) == sorted(map(repr, by_day.data))

    async def test_by_key(self, lab: Lab, used: Any) -> None:
        first, second, none = (await report(lab, "key")).data
        assert [first.key_id, second.key_id, none.key_id] == [*sorted(used["keys"]), None]
        by_key = {row.key_id: row for row in (first, second)}
        for number, key in enumerate(used["keys"]):
            row = by_key[key]
            assert row.key_name == (None if number else "shop")
            assert row.requests == 2 * DAYS * (number + 1)
            assert row.input_tokens == 2 * 111 * (number + 1)
            # Memory belongs to a deployment, independent of its callers.
            assert row.microcredits == row.memory_mib_ms == 0
        assert (none.requests, none.images) == (DAYS, DAYS)
        assert none.memory_mib_ms == DAYS * held(64 + 128)

    async def test_by_key_and_deployment(self, lab: Lab, used: Any) -> None:
        requests_by_key = {
            (row.key_id, row.deployment_id): row.requests
            for row in (await report(lab, "key,deployment")).data
        }
        first, second = used["keys"]
        assert requests_by_key == {
            (first, "dep_0"): DAYS,
            (first, "dep_1"): DAYS,
            (second, "dep_0"): 2 * DAYS,
            (second, "dep_1"): 2 * DAYS,
            (None, "dep_0"): DAYS,
            (None, "dep_1"): 0,
        }

    async def test_storage_is_of_no_deployment(self, lab: Lab, used: Any) -> None:
        lab.clock.pass_by(-HOUR_MS)
        await lab.store(2 << 20)
        await lab.tick(HOUR_MS // 2)
        *_, last = (await report(lab, "deployment")).data
        assert (last.deployment_id, last.model) == (None, None)
        assert last.storage_mib_ms == 2 * HOUR_MS // 2
        assert last.memory_mib_ms == last.requests == 0

    async def test_pages_are_of_the_whole(self, lab: Lab, used: Any) -> None:
        for group_by in GROUPED:
            whole = await report(lab, group_by)
            for limit in (1, 2, 5, 1000):
                paged_rows = await rows(lab, group_by, limit)
                assert paged_rows == [row.model_dump() for row in whole.data], (group_by, limit)
            for name in ("microcredits", "memory_mib_ms", "requests", "input_tokens", "images"):
                sums = sum(getattr(row, name) for row in whole.data)
                assert sums == getattr(whole.total, name), (group_by, name)
            assert whole.total.requests == DAYS * 7
            assert whole.total.memory_mib_ms == DAYS * held(64 + 128)

    async def test_what_is_not_charged_yet_is_in_its_row(self, lab: Lab, used: Any) -> None:
        lab.clock.pass_by(-24 * HOUR_MS)
        lab.begin("rep_now", 1_024, deployment="dep_1")
        await lab.tick(HOUR_MS // 2)
        *_, last = (await report(lab, "day,deployment")).data
        assert last.deployment_id == "dep_1"
        assert last.memory_microcredits == 125_000 + 500_000

    async def test_of_some_deployments(self, lab: Lab, used: Any) -> None:
        only = UsageSpan(
            account_id=ACCOUNT, first=SPAN.first, end=SPAN.end, deployment_ids=frozenset(["dep_1"])
        )
        async with lab.database.reading() as session:
            filtered = await reports.usage(session, only, Grouping.of("day,deployment"))
        assert {row.deployment_id for row in filtered.data} == {"dep_1"}
        assert filtered.total.requests == DAYS * 3


class TestCounting:
    async def test_a_row_for_each_key(self, lab: Lab, used: Any) -> None:
        count_rows = await lab.rows(UsageCount)
        of = lambda row: (row.hour, row.deployment_id)  # noqa: E731
        for (_, deployment), same in groupby(sorted(count_rows, key=of), of):
            callers = {row.key_id for row in same}
            assert callers == {*used["keys"], *([None] if deployment == "dep_0" else [])}

    async def test_key_that_is_forgotten(self, lab: Lab) -> None:
        CURRENT_CALLER.set(Party(ACCOUNT, "gone"))
        lab.serve("dep_0")
        await lab.tick(0)
        (row,) = await lab.rows(UsageCount)
        assert row.key_id is None


class TestGrouping:
    @pytest.mark.parametrize(
        "text",
        ["", "week", "day,", ",day", "day,day", "day,hour", "version,deployment", "day deployment",
         "key," * 40 + "key"],
    )  # fmt: skip
    def test_that_is_none(self, text: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            Grouping.of(text)
        assert caught.value.param == "group_by"

    @pytest.mark.parametrize("key", [(20_416, "dep_1"), (0, None)])
    def test_page(self, key: Any) -> None:
        grouping = Grouping.of("day,deployment")
        assert grouping.page_begin(grouping.page_after(key)) == key

    @pytest.mark.parametrize(
        "key",
        [(), (1,), (1, 2), ("dep_1", 1), (1, "a b"), (1, "\0"), (True, None), (None, None),
         (-1, None), (10**9, None), (1, "d" * 65), {"day": 1}, 1],
    )  # fmt: skip
    def test_page_of_something_else(self, key: Any) -> None:
        grouping = Grouping.of("day,deployment")
        for page in (grouping.page_after(key), "%", "é", "=", "W1sxXV0"):
            with pytest.raises(InvalidRequestError) as caught:
                grouping.page_begin(page)
            assert caught.value.param == "page"
