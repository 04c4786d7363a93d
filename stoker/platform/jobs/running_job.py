"""A job that this server works on."""

import asyncio
from datetime import datetime
from typing import Generic

from stoker.platform.jobs.kind import JobKind, Made, Row


class RunningJob(Generic[Row, Made]):
    task: "asyncio.Task[None]"

    def __init__(
        self,
        kind: JobKind[Row, Made],
        row: Row,
        token: str,
        leased_until: datetime,
        begun_at: datetime,
    ) -> None:
        self.kind = kind
        self.row = row
        self.token = token
        self.leased_until = leased_until
        self.begun_at = begun_at
        self.progress = 0.0

    def tell(self, fraction: float) -> None:
        self.progress = fraction
