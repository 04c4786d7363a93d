"""Polls the tables of all kinds of jobs for the servers of one PostgreSQL."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from stoker.platform.jobs import repository
from stoker.platform.jobs.runner import POLL_S, JobRunner
from stoker.store import db
from stoker.store.db import Database
from stoker.store.tables.jobs import Job
from stoker.store.waiting import repeated


class JobPoller:
    """Wakes each runner without work that has due jobs: those of other servers, retries, and jobs
    with an expired lease. One statement reads all tables.
    """

    def __init__(
        self,
        database: Database,
        runners: Mapping[type[Job], JobRunner[Any, Any]],
        clock: Callable[[], datetime] = db.now,
    ) -> None:
        """
        Args:
            runners: maps the table of each kind of jobs to its runner.
        """
        self._database = database
        self._runners = {repository.name_of(table): runner for table, runner in runners.items()}
        self._tables = tuple(runners)
        self._clock = clock
        for runner in runners.values():
            runner.is_polled = True

    async def run(self) -> None:
        """Polls until cancelled."""
        await repeated(self.look, POLL_S, "looking for due jobs")

    async def look(self) -> None:
        """Polls once."""
        for name in await repository.due_tables(self._database, self._tables, now=self._clock()):
            self._runners[name].wake_if_idle()
