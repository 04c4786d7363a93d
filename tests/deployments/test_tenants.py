"""Two accounts deploy the same model without any effect on each other."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.deployments.support import DEPLOYMENTS, call, deploy, upload
from tests.support.server import Server


def workers(client: httpx.Client, identifier: str) -> set[int]:
    deployment = client.get(f"{DEPLOYMENTS}/{identifier}").raise_for_status().json()
    return {worker["pid"] for worker in deployment["workers"]}


@pytest.mark.case(20)
def test_each_has_replicas_of_its_own(own_server: Server) -> None:
    """Accounts do not share replicas. CVE-2025-46570: the response times of a shared prefix cache
    reveal the prompts of others. A replica holds the prefix cache, so replicas must not be shared.
    """
    with own_server.account("one") as first, own_server.account("other") as other:
        clients = (first, other)
        made = [deploy(client, upload(own_server, client), "same")["id"] for client in clients]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: call(clients[n % 2], "same"), range(16)))
        assert {answer.status_code for answer in answers} == {200}
        pids = [workers(client, name) for client, name in zip(clients, made, strict=True)]
        assert all(pids), pids
        assert not pids[0] & pids[1]
        # Deleting one deployment does not affect the other.
        first.delete(f"{DEPLOYMENTS}/{made[0]}").raise_for_status()
        assert call(first, "same").status_code == 404
        assert call(other, "same").status_code == 200
        assert workers(other, made[1]) == pids[1]
        other.delete(f"{DEPLOYMENTS}/{made[1]}").raise_for_status()
