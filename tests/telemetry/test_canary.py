"""Keys are nowhere: not in what is answered, measured, traced or logged by anyone."""

import httpx
import pytest

from tests.artifacts.support import eventually
from tests.deployments.support import DEPLOYMENTS, bert, call, key_for
from tests.keys.test_secrets import files_with, secret_of
from tests.support.deploying import deploy
from tests.support.server import Server
from tests.support.tracing import Collector

KEYS = "/v1/api-keys"
TRACE = "c" * 32


@pytest.mark.one_machine
@pytest.mark.case(12, 16)
def test_canary_keys_are_nowhere(traced_server: Server, collector: Collector) -> None:
    with traced_server.account("canary") as account:
        own = account.headers["authorization"].removeprefix("Bearer ")
        identifier = deploy(account, bert(), "canary")["id"]
        narrow = key_for(account, identifier)
        secrets = {secret_of(own), secret_of(narrow)}
        answers = [*used(traced_server, own), *used(traced_server, narrow)]
        assert {answer.status_code for answer in answers} == {200, 400, 401, 404, 409, 415}
        for answer in answers:
            # As they were asked for: headers, too, may go into somebody's log.
            told = answer.text + str(answer.headers)
            assert not [one for one in secrets if one in told], answer.text
        lines = account.get(f"{DEPLOYMENTS}/{identifier}/logs").json()["data"]
        assert lines, "the replica has written something"
    with traced_server.client(traced_server.operator_key) as operator:
        metrics = operator.get("/metrics").text
    assert "stoker_requests_total" in metrics
    collector.wait_for(TRACE, "POST /v1/classifications/token")
    assert eventually(lambda: bool(collector.bodies))
    exported = b"".join(collector.bodies)
    for secret in secrets:
        assert secret not in metrics
        assert secret.encode() not in exported
        # The replica's and the host's logs are among them.
        assert files_with(traced_server, secret) == set()


def used(server: Server, key: str) -> list[httpx.Response]:
    """A key used well and badly, in every place where clients put keys."""
    found: list[httpx.Response] = []
    with server.client(key) as client:
        client.headers["traceparent"] = f"00-{TRACE}-00f067aa0ba902b7-01"
        found += [
            call(client, "canary"),
            call(client, "nobodys"),
            call(client, "canary", aggregation_strategy="nonsense"),
            client.get("/v1/accounts"),
            client.get("/nothing"),
            client.get("/v1/models", headers={"x-api-key": key, "cookie": f"key={key}"}),
            client.post(DEPLOYMENTS, json={"model": "canary", "artifact_id": "art_0"}),
            client.post(DEPLOYMENTS, content=b"{", headers={"content-type": "application/json"}),
            client.post(KEYS, content=b"x", headers={"content-type": "text/plain"}),
        ]
    for wrong in (f"{key}x", f"{key} x", f"Bearer {key}"):
        with server.client(wrong) as client:
            found.append(call(client, "canary"))
    return found
