"""The transport of the command line: JSON objects, paging and files."""

import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import parse_qsl, urlsplit

from .request import ApiRequest, Files, JsonObject, quoted
from .response import decoded, json_object
from .retry import Retry
from .transport import Transport

__all__ = ["ApiRequest", "Client", "Files", "JsonObject", "Retry", "quoted"]

PAGE_LIMIT = 100


class Client(Transport):
    """HTTP client that sends requests with the caller's API key. Thread-safe."""

    def get(self, path: str, **params: str | int) -> JsonObject:
        return self.json(ApiRequest(method="GET", path=path, params=params))

    def post(self, path: str, body: JsonObject | None = None) -> JsonObject:
        return self.json(ApiRequest(method="POST", path=path, json=body))

    def delete(self, path: str) -> JsonObject:
        return self.json(ApiRequest(method="DELETE", path=path))

    def create(self, path: str, body: JsonObject, retry: Retry | None = None) -> JsonObject:
        """Creates an object with an idempotent POST, so that retries create it once."""
        headers = {"idempotency-key": uuid.uuid4().hex}
        request = ApiRequest(method="POST", path=path, json=body, headers=headers)
        return retry.run(lambda: self.json(request)) if retry else self.json(request)

    def pages(
        self,
        path: str,
        limit: int | None = None,
        *,
        params: Mapping[str, str] = MappingProxyType({}),
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[JsonObject]:
        """Yields the objects of a list, newest first, up to `limit`."""
        after: dict[str, str] = {}
        while limit is None or limit > 0:
            size = PAGE_LIMIT if limit is None else min(PAGE_LIMIT, limit)
            query = {"limit": size, **params, **after}
            request = ApiRequest(method="GET", path=path, params=query, headers=dict(headers))
            page = self.json(request)
            yield from page["data"]
            if not page.get("has_more"):
                return
            limit = None if limit is None else limit - len(page["data"])
            after = {"after": page["last_id"]}

    def health(self, path: str) -> tuple[int, JsonObject]:
        """Returns status and body of /health or /ready. A 503 is not raised as an error."""
        answer = self.send(ApiRequest(method="GET", path=path))
        return answer.status_code, json_object(decoded(answer))

    def text_pages(self, request: ApiRequest) -> Iterator[str]:
        """Yields a response and the pages that its `Link` header names. Raises as `json` does."""
        while True:
            answer = self.succeeded(request)
            yield answer.text
            following = answer.links.get("next")
            if following is None:
                return
            query = urlsplit(following["url"]).query
            request = replace(request, params=dict(parse_qsl(query)))

    def download(self, request: ApiRequest, target: Path | None) -> None:
        """Streams the response into a file, which appears only when complete. If `target` is None,
        writes to stdout.

        Raises the same errors as `json`.
        """
        if target is not None:
            self.save(request, target)
            return
        for piece in self.pieces(request):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
