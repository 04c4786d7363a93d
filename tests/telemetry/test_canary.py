"""Keys appear nowhere: not in responses, metrics, traces or logs."""

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
        key = account.headers["authorization"].removeprefix("Bearer ")
        identifier = deploy(account, bert(), "canary")["id"]
        narrow = key_for(account, identifier)
        secrets = {secret_of(key), secret_of(narrow)}
        answers = [*used(traced_server, key), *used(traced_server, narrow)]
        assert {answer.status_code for answer in answers} == {200, 400, 401, 404, 409, 415}
        for answer in answers:
            # Headers are included, because they may be logged, too.
            response_text = answer.text + str(answer.headers)
            assert not [candidate for candidate in secrets if candidate in response_text], (
                answer.text
            )
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
        # The checked files include the logs of the replica and the engine host.
        assert files_with(traced_server, secret) == set()


def used(server: Server, key: str) -> list[httpx.Response]:
    """Uses a key in valid and invalid requests, in every place where clients put keys. Returns the
    responses.
    """
    responses: list[httpx.Response] = []
    with server.client(key) as client:
        client.headers["traceparent"] = f"00-{TRACE}-00f067aa0ba902b7-01"
        responses += [
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
            responses.append(call(client, "canary"))
    return responses
