"""A request of one key does not wait behind a flood of requests of another key."""

import threading
from concurrent.futures import ThreadPoolExecutor

from tests.deployments.support import bert, key_for
from tests.support.deploying import deploy
from tests.support.server import Server

TOKENS = "/v1/classifications/token"
FLOOD = 40


def test_keys_take_turns(server: Server) -> None:
    server.wait_ready()
    with server.account("turns") as account:
        deployment = deploy(account, bert(), "turns")["id"]
        keys = [key_for(account, deployment) for _ in range(2)]
        ended: list[int] = []
        first = threading.Event()

        with server.client(keys[0]) as flooding, server.client(keys[1]) as other:
            other.post(TOKENS, json={"inputs": "warm"}).raise_for_status()

            def flood(at: int) -> None:
                body = {"inputs": ["one two three four " * 8] * 64}
                flooding.post(TOKENS, json=body).raise_for_status()
                ended.append(at)
                first.set()

            with ThreadPoolExecutor(FLOOD) as pool:
                waiting = [pool.submit(flood, at) for at in range(FLOOD)]
                assert first.wait(120)
                # All other requests of the flood have reached the replica, or are about to.
                before = len(ended)
                other.post(TOKENS, json={"inputs": "one"}).raise_for_status()
                after = len(ended)
                for future in waiting:
                    future.result()
        account.delete(f"/v1/deployments/{deployment}").raise_for_status()
    assert len(ended) == FLOOD
    # Compared with the requests that were unanswered when it arrived.
    assert after - before < (FLOOD - before) * 3 / 4, "behind all of the flood, as it was before"
