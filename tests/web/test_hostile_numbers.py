"""Numbers and brackets beyond Python's limits, in every part of a request that accepts them."""

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.deployments.routes import STREAMS, Place, app, places
from tests.deployments.support import check_error
from tests.support.raw import Answer, ask
from tests.support.server import Server

DIGITS = "9" * 5000
"""More digits than Python's `int` accepts, which is 4,300."""
DEEP = "[" * 25_000
PARTS = "/v1/model-artifacts/art_1/uploads/upl_1/files/a/parts"


@pytest.fixture(scope="module")
def client(gateway: Server) -> Iterator[httpx.Client]:
    with gateway.account("hostile") as client:
        yield client


def queries() -> dict[str, list[str]]:
    """Maps each path to the names of its operations' query parameters."""
    return {
        path: [
            parameter["name"]
            for operation in item.values()
            for parameter in operation.get("parameters", [])
            if parameter["in"] == "query"
        ]
        for path, item in app().openapi()["paths"].items()
    }


def said(gateway: Server, client: httpx.Client, target: str) -> Answer:
    """Posts an image to a target that client libraries would change."""
    head = (
        f"POST {target} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: image/png\r\n"
    )
    head += f"authorization: {client.headers['authorization']}\r\ncontent-length: 1\r\n\r\nx"
    (answer,) = ask(gateway, head.encode())
    return answer


class TestL1:
    def test_l1_number_of_a_part_without_a_key(self, gateway: Server) -> None:
        with gateway.client() as anonymous:
            response = anonymous.put(f"{PARTS}/{DIGITS}", content=b"x")
        assert response.status_code == 401

    @pytest.mark.parametrize("number", ["0", "100001", "9" * 19, "0" * 17 + "100001", DIGITS])
    def test_l1_number_of_a_part(self, client: httpx.Client, number: str) -> None:
        response = client.put(f"{PARTS}/{number}", content=b"x")
        check_error(response, 400, "InvalidRequestError", "invalid_request", "number")

    @pytest.mark.parametrize("number", ["1", "100000", "007"])
    def test_l1_number_that_is_one(self, client: httpx.Client, number: str) -> None:
        response = client.put(f"{PARTS}/{number}", content=b"x")
        check_error(response, 404, "NotFoundError", "artifact_not_found")

    @pytest.mark.parametrize("place", places(), ids=str)
    def test_l1_every_path_and_query(self, client: httpx.Client, place: Place) -> None:
        path = re.sub(r"\{[^}]+\}", DIGITS, place.path)
        names = queries().get(re.sub(r":\w+\}", "}", place.path), [])
        for query in ("", *(f"?{name}={DIGITS}" for name in names)):
            if place.path in STREAMS and not query:
                continue
            response = client.request(place.method, path + query)
            assert response.status_code < 500, (query[:50], response.text)

    def test_l1_field_of_a_form(self, client: httpx.Client) -> None:
        response = client.post(
            "/v1/classifications/zero-shot/image",
            files={"inputs": b"x"},
            data={"candidate_labels": DEEP},
        )
        error = check_error(response, 400, "InvalidRequestError", "invalid_request")
        assert "objects and lists than the limit of" in error["message"]

    @pytest.mark.parametrize("brackets", [25_000, 60_000])
    def test_l1_field_of_a_query(
        self, gateway: Server, client: httpx.Client, brackets: int
    ) -> None:
        """25,000 unquoted brackets fit into a target. Percent-encoded brackets would not fit."""
        target = f"/v1/classifications/zero-shot/image?candidate_labels={'[' * brackets}"
        answer = said(gateway, client, target)
        assert answer.status == (400 if brackets == 25_000 else 414)

    def test_l1_body(self, client: httpx.Client) -> None:
        headers = {"content-type": "application/json"}
        for path in ("/v1/classifications/token", "/v1/chat/completions", "/v1/api-keys"):
            for content in (DEEP, '{"inputs": ' + DEEP, '{"model": ' + DIGITS):
                response = client.post(path, content=content, headers=headers)
                check_error(response, 400, "InvalidRequestError", "invalid_request")
