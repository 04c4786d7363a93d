"""What works on runs, in one place."""

from dataclasses import dataclass
from typing import Any

from stoker.agents.followers import Followers
from stoker.agents.journal import Journal
from stoker.agents.outbound import Outbound
from stoker.config import Settings
from stoker.jobs.runner import Runner
from stoker.store.db import Database
from stoker.store.tables.agents import Run


@dataclass(frozen=True, kw_only=True)
class Runs:
    runner: Runner[Run, Any]
    journal: Journal
    followers: Followers
    outbound: Outbound


def build(settings: Settings, database: Database) -> Runs:
    followers = Followers()
    return Runs(
        followers=followers,
        journal=Journal(database, followers),
        outbound=Outbound(
            allowed_hosts=settings.tool_hosts, allowed_private=settings.tool_private_hosts
        ),
        runner=Runner(
            database,
            lease_s=settings.job_lease_s,
            at_once=settings.agent_runs_at_once,
            # A language model takes all requests into one batch: its own queue is the bound.
            share=lambda _deployment_id: settings.agent_runs_at_once,
        ),
    )
