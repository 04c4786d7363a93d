"""Lists of large objects and the deletion of many: each step handles a bounded amount."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import select

from stoker.base.errors import NotFoundError
from stoker.platform.web.lists import PAGE_BYTES, Page, PageQuery, json_page
from stoker.store.tables.agents import Agent, Run
from stoker.workloads.agents import repository, run_service
from stoker.workloads.agents.events import STEP_STARTED
from tests.agents.lab import Lab, counted_commits


def walked(pages: Sequence[Sequence[Any]]) -> list[Any]:
    return [item for page in pages for item in page]


class TestM4:
    """A page ends before it holds too much, and no run is left out."""

    @pytest.mark.parametrize("order", ["asc", "desc"])
    async def test_runs(self, lab: Lab, order: Any) -> None:
        sizes = [10, 1 << 20, 10, 3 << 20, 1 << 20, 1 << 20, 10]
        rows = [await lab.run(agent_id="agent_runs", asked=b"a" * size) for size in sizes]
        pages: list[list[str]] = []
        after, has_more = None, True
        while has_more:
            async with lab.database.reading() as session:
                query = PageQuery(limit=4, after=after, order=order)
                page = await repository.runs(session, "agent_runs", query)
            weights = [len(row.asked) for row in page.rows]
            assert 1 <= len(weights) <= 4
            assert len(weights) == 1 or sum(weights) <= PAGE_BYTES
            pages.append([row.id for row in page.rows])
            after, has_more = pages[-1][-1], page.has_more
        expected = sorted((row.id for row in rows), reverse=order == "desc")
        assert walked(pages) == expected
        assert len(pages) > 2

    @pytest.mark.parametrize("newest_first", [False, True])
    async def test_events(self, lab: Lab, newest_first: bool) -> None:
        row = await lab.run()
        sizes = [10, 1 << 20, 10, 3 << 20, 1 << 20, 1 << 20, 10]
        writer = lab.writer(row)
        for size in sizes:
            writer.add(STEP_STARTED, {"text": "a" * size})
        await writer.commit()
        pages: list[list[int]] = []
        after, has_more = 0, True
        while has_more:
            async with lab.database.reading() as session:
                page = await repository.events(
                    session, row.id, after=after, limit=4, newest_first=newest_first
                )
            weights = [len(event.data) for event in page.rows]
            assert 1 <= len(weights) <= 4
            assert len(weights) == 1 or sum(weights) <= PAGE_BYTES
            pages.append([event.sequence for event in page.rows])
            after, has_more = pages[-1][-1], page.has_more
        expected = list(range(1, 8))
        assert walked(pages) == (expected[::-1] if newest_first else expected)
        assert len(pages) > 2

    async def test_list_is_what_it_was(self) -> None:
        rows = [SimpleNamespace(id='a"b', n=1), SimpleNamespace(id="c", n=2)]

        class Shown(BaseModel):
            id: str
            n: int

        for page in (Page(rows, has_more=True), Page[Any]((), has_more=False)):
            made = await json_page(page, lambda row: Shown(id=row.id, n=row.n))
            plain = page.response(lambda row: Shown(id=row.id, n=row.n))
            assert json.loads(made.body) == json.loads(plain.model_dump_json())


class TestDeletingAnAgent:
    """An agent with very many runs is deleted in several transactions."""

    def context(self, lab: Lab, told: list[str]) -> Any:
        return SimpleNamespace(
            database=lab.database,
            followers=lab.followers,
            jobs=SimpleNamespace(cancel=told.append),
        )

    async def test_all_are_gone(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run_service, "_ERASED_AT_ONCE", 3)
        rows = [await lab.run() for _ in range(9)]
        cancelled: list[str] = []
        with counted_commits(lab.database) as commits:
            await run_service.erase_with_agent(
                self.context(lab, cancelled), "acct_runs", "agent_runs"
            )
        assert len(commits) == 4
        async with lab.database.reading() as session:
            assert (await session.scalars(select(Run.id))).all() == []
            assert (await session.scalars(select(Agent.id))).all() == []
        assert sorted(cancelled) == sorted(row.id for row in rows)

    async def test_that_breaks_off_can_be_repeated(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run_service, "_ERASED_AT_ONCE", 3)
        for _ in range(9):
            await lab.run()
        delete_runs, calls = repository.delete_runs, 0

        async def fail_later(*given: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise OSError
            await delete_runs(*given)

        monkeypatch.setattr(repository, "delete_runs", fail_later)
        context = self.context(lab, [])
        with pytest.raises(OSError):
            await run_service.erase_with_agent(context, "acct_runs", "agent_runs")
        async with lab.database.reading() as session:
            assert len((await session.scalars(select(Run.id))).all()) == 6
            assert (await session.scalars(select(Agent.id))).all() == ["agent_runs"]
        await run_service.erase_with_agent(context, "acct_runs", "agent_runs")
        with pytest.raises(NotFoundError):
            await run_service.erase_with_agent(context, "acct_runs", "agent_runs")
