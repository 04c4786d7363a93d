"""Retries of the typed client, with a proxy that injects errors in front of a real server."""

import pytest

from stoker.client import (
    ApiError,
    AsyncStoker,
    BrokenConnectionError,
    UnexpectedResponseError,
)
from tests.client.conftest import GOOD, Reached
from tests.client.editing_proxy import EditingProxy, Fault

BUSY = Fault(503, {"retry-after": "1"})
BROKEN = Fault(0)
LOST = Fault(0, is_late=True)


def test_read_is_repeated(reached: Reached, proxy: EditingProxy) -> None:
    proxy.faults = [Fault(500), BROKEN, Fault(429)]
    with reached.stoker(proxy.address) as stoker:
        assert stoker.quotas.get().quotas
    assert len(proxy.seen) == 4


def test_read_gives_up(reached: Reached, proxy: EditingProxy) -> None:
    proxy.faults = [Fault(500) for _ in range(9)]
    with reached.stoker(proxy.address, max_retries=2) as stoker, pytest.raises(ApiError) as caught:
        stoker.quotas.get()
    assert (caught.value.status, len(proxy.seen)) == (500, 3)


def test_no_retries(reached: Reached, proxy: EditingProxy) -> None:
    proxy.faults = [BUSY]
    with reached.stoker(proxy.address, max_retries=0) as stoker, pytest.raises(ApiError):
        stoker.quotas.get()
    assert len(proxy.seen) == 1


def test_create_is_executed_once(reached: Reached, proxy: EditingProxy) -> None:
    """The server executed the request, but its answer was lost."""
    proxy.faults = [LOST]
    with reached.stoker(proxy.address) as stoker:
        artifact = stoker.artifacts.create(display_name="once")
        named = [item.id for item in stoker.artifacts.list() if item.display_name == "once"]
        assert named == [artifact.id]
        stoker.artifacts.delete(artifact.id)
    keys = {seen.headers["idempotency-key"] for seen in proxy.seen if seen.method == "POST"}
    assert (len(keys), len([s for s in proxy.seen if s.method == "POST"])) == (1, 2)


async def test_task_that_was_not_executed_is_repeated(
    reached: Reached, proxy: EditingProxy
) -> None:
    proxy.faults = [BUSY, Fault(429)]
    async with AsyncStoker(base_url=proxy.address, api_key=reached.key) as stoker:
        labels = await stoker.tasks.text_classification(GOOD, model="tiny-sentiment")
    assert (labels[0]["label"], len(proxy.seen)) == ("positive", 3)


@pytest.mark.parametrize("fault", [Fault(500), Fault(503), Fault(504)], ids=lambda f: str(f.status))
def test_task_that_may_have_been_executed_is_not(
    reached: Reached, proxy: EditingProxy, fault: Fault
) -> None:
    proxy.faults = [fault]
    with reached.stoker(proxy.address) as stoker, pytest.raises(ApiError):
        stoker.tasks.text_classification(GOOD, model="tiny-sentiment")
    assert len(proxy.seen) == 1


def test_task_whose_answer_was_lost_is_not(reached: Reached, proxy: EditingProxy) -> None:
    proxy.faults = [LOST]
    with reached.stoker(proxy.address) as stoker, pytest.raises(BrokenConnectionError):
        stoker.tasks.text_classification(GOOD, model="tiny-sentiment")
    assert len(proxy.seen) == 1


def test_lasting_error_is_not_repeated(reached: Reached, proxy: EditingProxy) -> None:
    proxy.faults = [Fault(503, {"x-should-retry": "false"})]
    with reached.stoker(proxy.address) as stoker, pytest.raises(ApiError):
        stoker.quotas.get()
    assert len(proxy.seen) == 1


class TestOtherServers:
    """Servers that are older or newer than the client: their answers have other fields."""

    def test_unknown_fields_and_values(self, reached: Reached, proxy: EditingProxy) -> None:
        def newer(value: object) -> object:
            if isinstance(value, dict):
                known = {name: newer(item) for name, item in value.items()}
                if known.get("object") == "deployment":
                    known["status"] = "hibernating"
                return {**known, "of_tomorrow": {"a": [1]}}
            return [newer(item) for item in value] if isinstance(value, list) else value

        proxy.edit = newer
        with reached.stoker(proxy.address) as stoker:
            statuses = {deployment.status for deployment in stoker.deployments.list()}
            assert statuses == {"hibernating"}
            labels = stoker.tasks.text_classification(GOOD, model="tiny-sentiment")
            assert labels[0]["label"] == "positive"
            assert stoker.machine.get().object == "machine"

    def test_lost_optional_fields(self, reached: Reached, proxy: EditingProxy) -> None:
        def older(value: object) -> object:
            if isinstance(value, dict):
                return {
                    name: older(item)
                    for name, item in value.items()
                    if name not in ("object", "first_id", "warning", "problem")
                }
            return [older(item) for item in value] if isinstance(value, list) else value

        proxy.edit = older
        with reached.stoker(proxy.address) as stoker:
            (deployment,) = stoker.deployments.list(search="sentiment")
            assert deployment.object == "deployment"
            assert stoker.machine.health().status == "ok"

    def test_missing_field(self, reached: Reached, proxy: EditingProxy) -> None:
        def lacking(value: dict[str, object]) -> object:
            return {name: item for name, item in value.items() if name != "display_name"}

        with reached.stoker(proxy.address) as stoker:
            made = stoker.artifacts.create(display_name="named")
            proxy.edit = lacking
            with pytest.raises(
                UnexpectedResponseError, match=r"has no field 'display_name'\. Is the server older"
            ):
                stoker.artifacts.get(made.id)
            proxy.edit = lambda value: value
            stoker.artifacts.delete(made.id)
