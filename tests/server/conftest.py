from collections.abc import Iterator

import httpx
import pytest

from tests.server.support import ANSWER_S, BODY_S, CONNECTIONS, HEAD_S, PER_ADDRESS
from tests.support.server import WITHOUT_MODELS, Server, running


@pytest.fixture(scope="session")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Starts a separate server with low limits. Other tests cannot use it, because it ends
    connections.
    """
    env = {
        "STOKER_HEAD_TIMEOUT_S": str(HEAD_S),
        "STOKER_BODY_TIMEOUT_S": str(BODY_S),
        "STOKER_ANSWER_TIMEOUT_S": str(ANSWER_S),
        "STOKER_CONNECTIONS_LIMIT": str(CONNECTIONS),
        "STOKER_CONNECTIONS_PER_ADDRESS": str(PER_ADDRESS),
    }
    with running(tmp_path_factory.mktemp("hasty") / "data", **env, **WITHOUT_MODELS) as server:
        yield server


@pytest.fixture(scope="session")
def operator(hasty: Server) -> Iterator[httpx.Client]:
    with hasty.client(hasty.operator_key) as client:
        yield client
