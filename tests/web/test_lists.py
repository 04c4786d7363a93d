from collections.abc import Iterator

import httpx
import pytest

from tests.artifacts.support import ARTIFACTS, new_artifact
from tests.deployments.support import check_error
from tests.support.server import Server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("lists") as client:
        yield client


@pytest.fixture(scope="module")
def made(client: httpx.Client) -> list[str]:
    """Returns ids sorted by creation. Within one millisecond the ids have no order of creation."""
    return sorted(new_artifact(client) for _ in range(23))


def page(client: httpx.Client, **query: object) -> dict[str, object]:
    answer = client.get(ARTIFACTS, params=query).raise_for_status().json()
    return answer | {"data": [item["id"] for item in answer["data"]]}


def test_empty(server: Server):
    with server.account() as client:
        assert page(client) == {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }


def test_twenty_newest_by_default(client: httpx.Client, made: list[str]):
    assert page(client) == {
        "object": "list",
        "data": made[:2:-1],
        "first_id": made[-1],
        "last_id": made[3],
        "has_more": True,
    }


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 7, 23, 100])
def test_pages_make_up_the_list(client: httpx.Client, made: list[str], order: str, limit: int):
    listed: list[object] = []
    query: dict[str, object] = {"order": order, "limit": limit}
    for _ in range(30):
        answer = page(client, **query)
        listed += answer["data"]  # type: ignore[arg-type]
        if not answer["has_more"]:
            break
        query["after"] = answer["last_id"]
    assert listed == (made if order == "asc" else made[::-1])


def test_exact_page_has_no_more(client: httpx.Client, made: list[str]):
    assert page(client, limit=23)["has_more"] is False
    assert page(client, limit=22)["has_more"] is True


def test_after_the_last_one(client: httpx.Client, made: list[str]):
    assert page(client, after=made[0])["data"] == []
    assert page(client, after=made[-1], order="asc")["data"] == []


def test_after_an_object_that_is_gone(client: httpx.Client, made: list[str]):
    """Paging continues at the position of a deleted object."""
    gone = new_artifact(client)
    client.delete(f"{ARTIFACTS}/{gone}").raise_for_status()
    assert page(client, after=gone, limit=1)["data"] == [made[-1]]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": -1}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"limit": 10**30}, "limit"),
        ({"order": "random"}, "order"),
        ({"after": "x" * 65}, "after"),
        ({"after": "\0"}, "after"),
    ],
)
@pytest.mark.parametrize("path", [ARTIFACTS, "/v1/deployments", "/v1/api-keys"])
def test_bounds(client: httpx.Client, path: str, query: dict[str, object], param: str):
    response = client.get(path, params=query)
    check_error(response, 400, "InvalidRequestError", "invalid_request", param)
