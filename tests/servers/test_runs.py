"""Agent runs that one server executes can be shown, followed, answered, cancelled and deleted
through others.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.agents.conftest import MODEL
from tests.agents.support import ANSWERED, COUNT, SUNNY, WEATHER, Account, check_sequence, spoken
from tests.servers.support import SLACK_S, SOON_S, Pair, until
from tests.support.deploying import deploy, wait_for


@pytest.fixture(scope="module")
def accounts(two: Pair) -> Iterator[tuple[Account, Account]]:
    """Yields one account as seen through both servers."""
    on_a, on_b = two.account()
    with on_a, on_b:
        chat = deploy(on_a, MODEL, "chat", engine="torch", readiness="warm")
        until(lambda: on_b.get(f"/v1/deployments/{chat['id']}").status_code == 200)
        for client in (on_a, on_b):
            wait_for(client, chat["id"], "ready")
        yield Account(on_a, chat["id"]), Account(on_b, chat["id"])
        on_a.delete(f"/v1/deployments/{chat['id']}").raise_for_status()


class Listener:
    """Follows a run through a server and records the delay of each event."""

    def __init__(self, account: Account, run: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.late_s: list[float] = []
        """Delay in seconds of each event that was created after the listener started."""
        self._begun = time.time()
        self._account = account
        self._thread = threading.Thread(target=self._listen, args=(run,))
        self._thread.start()

    def _listen(self, run: str) -> None:
        for event in self._account.stream(run):
            self.events.append(event)
            if "created_at" in event:
                made = datetime.fromisoformat(event["created_at"]).timestamp()
                if made > self._begun:
                    self.late_s.append(time.time() - made)

    def end(self) -> list[dict[str, Any]]:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the stream goes on"
        return self.events


@contextmanager
def counting(account: Account) -> Iterator[str]:
    """Starts a long run, which the server executes slowly in the meantime."""
    agent = account.agent()
    with account.slowed():
        run = account.run(agent, COUNT)
        until(account.outstanding)
        yield run


class TestRuns:
    def test_one_is_followed_on_the_other_server(self, accounts: tuple[Account, Account]) -> None:
        a, b = accounts
        with counting(a) as run:
            listener = Listener(b, run)
            until(lambda: any(event["type"] == "message.delta" for event in listener.events))
            # Events are sent while the run is in progress.
            assert b.get(run)["status"] == "in_progress"
        events = listener.end()
        assert events[-1]["type"] == "run.completed"
        check_sequence(events)
        assert spoken(events)[1] == a.get(run)["output"] == b.get(run)["output"]
        assert max(listener.late_s) < SOON_S + SLACK_S

    def test_outputs_are_given_to_the_other_server(self, accounts: tuple[Account, Account]) -> None:
        a, b = accounts
        run = a.run(a.agent(tools=[WEATHER]))
        listener = Listener(a, run)
        b.answer(run, SUNNY)
        assert b.until(run)["output"] == ANSWERED
        events = listener.end()
        check_sequence(events)
        assert events[-1]["type"] == "run.completed"
        assert max(listener.late_s) < SOON_S + SLACK_S

    def test_one_is_cancelled_through_the_other_server(
        self, accounts: tuple[Account, Account]
    ) -> None:
        a, b = accounts
        with counting(a) as run:
            listener = Listener(a, run)
            begun = time.monotonic()
            assert b.post(f"{run}/cancel", 200)["status"] == "cancelled"
            # The engine of the other server stops.
            until(lambda: not a.outstanding())
            assert time.monotonic() - begun < SOON_S + SLACK_S
        assert listener.end()[-1]["type"] == "run.cancelled"
        assert a.get(run)["status"] == "cancelled"

    def test_one_is_deleted_through_the_other_server(
        self, accounts: tuple[Account, Account]
    ) -> None:
        a, b = accounts
        with counting(a) as run:
            listener = Listener(a, run)
            until(lambda: listener.events)
            b.client.delete(run).raise_for_status()
            until(lambda: not a.outstanding())
        assert listener.end()[-1]["type"] == "run.deleted"
