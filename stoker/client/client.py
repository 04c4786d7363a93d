"""HTTP client for the server's API, with errors, retries and paging."""

import contextlib
import json
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlsplit

from stoker.client import proxies
from stoker.client.errors import (
    ACCOUNT_HEADER,
    ApiError,
    ApiProblem,
    BrokenConnectionError,
    CliError,
    UnreachableError,
    WrongUseError,
)

if TYPE_CHECKING:
    import httpx

JsonObject = dict[str, Any]
Files = Sequence[tuple[str, Path | str]]
"""Form fields with their files or text values. Names may repeat."""
Result = TypeVar("Result")

PAGE_LIMIT = 100
CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 120.0
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


class Stopped(Exception):  # noqa: N818 - not an error: the command is stopping
    """Raised if another thread stopped the work."""


@dataclass
class Retry:
    """Retry policy for requests that are safe to repeat.

    A server that refuses connections may be restarting: `unreachable_s` limits those retries.
    `attempts` limits retries after all other temporary errors.
    """

    attempts: int = 5
    unreachable_s: float = 60.0
    first_delay_s: float = 0.5
    longest_delay_s: float = 15.0
    stop: threading.Event = field(default_factory=threading.Event)
    on_wait: Callable[[str], None] = lambda _message: None

    def run(self, attempt: Callable[[], Result]) -> Result:
        """Returns the first successful result of `attempt`. Raises its last error otherwise."""
        failures = 0
        unreachable_since: float | None = None
        while True:
            try:
                return attempt()
            except UnreachableError as error:
                unreachable_since = unreachable_since or time.monotonic()
                if time.monotonic() - unreachable_since > self.unreachable_s:
                    raise
                self._wait(self.first_delay_s, error.message)
            except (BrokenConnectionError, ApiError) as error:
                unreachable_since = None
                failures += 1
                if failures >= self.attempts or not _is_passing(error):
                    raise
                self._wait(self._delay(failures, error), error.message)

    def _delay(self, failures: int, error: BrokenConnectionError | ApiError) -> float:
        retry_after_s = error.problem.retry_after_s if isinstance(error, ApiError) else None
        if retry_after_s is not None:
            return retry_after_s
        longest = min(self.longest_delay_s, self.first_delay_s * 2 ** (failures - 1))
        # Jitter, so that workers that failed together do not retry together.
        return longest * random.uniform(0.5, 1)  # noqa: S311

    def _wait(self, seconds: float, why: str) -> None:
        self.on_wait(why)
        if self.stop.wait(seconds):
            raise Stopped


def _is_passing(error: BrokenConnectionError | ApiError) -> bool:
    return isinstance(error, BrokenConnectionError) or error.is_passing


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    method: str
    path: str
    json: JsonObject | None = None
    params: dict[str, str | int] = field(default_factory=dict[str, str | int])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    content: Iterable[bytes] | None = None
    files: Files = ()
    """Files of the request. A request with files is sent as a form that includes the fields of
    `json`.
    """
    timeout_s: float = TIMEOUT_S


class Client:
    """HTTP client that sends requests with the caller's API key. Thread-safe."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        connections: int = 4,
        account: str | None = None,
    ) -> None:
        """Args:
        account: account that an operator key acts for."""
        httpx = proxies.import_httpx()
        if not base_url.startswith(("http://", "https://")):
            raise _not_an_address(base_url)
        self.base_url = base_url.rstrip("/")
        self._http = proxies.client(
            self.base_url,
            headers=({"authorization": f"Bearer {api_key}"} if api_key else {})
            | ({ACCOUNT_HEADER: account} if account else {}),
            # Loading certificates takes 70 ms, which plain http does not need.
            verify=base_url.startswith("https:"),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

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
        return answer.status_code, _object(_decoded(answer))

    def json(self, request: ApiRequest) -> Any:
        """Returns the JSON response to a request.

        Raises `ApiError` for an error response, `UnreachableError` if no connection can be made
        and `BrokenConnectionError` if it breaks.
        """
        answer = self.send(request)
        if not answer.is_success:
            raise ApiError(_problem(answer))
        return _decoded(answer)

    def text(self, request: ApiRequest) -> str:
        """Returns the response body. Raises the same errors as `json`."""
        return self._succeeded(request).text

    def text_pages(self, request: ApiRequest) -> Iterator[str]:
        """Yields a response and the pages that its `Link` header names. Raises as `json` does."""
        while True:
            answer = self._succeeded(request)
            yield answer.text
            following = answer.links.get("next")
            if following is None:
                return
            query = urlsplit(following["url"]).query
            request = replace(request, params=dict(parse_qsl(query)))

    def _succeeded(self, request: ApiRequest) -> "httpx.Response":
        answer = self.send(request)
        if not answer.is_success:
            raise ApiError(_problem(answer))
        return answer

    def events(self, request: ApiRequest) -> Iterator[JsonObject]:
        """Yields the events of a streamed response. Raises the same errors as `json`."""
        for _, data in self.named_events(request):
            yield data

    def named_events(self, request: ApiRequest) -> Iterator[tuple[str, JsonObject]]:
        """Yields events with their names. The name is empty if an event has none."""
        answer = self._exchange(request, stream=True)
        with contextlib.closing(answer), self._exchanging():
            if not answer.is_success:
                answer.read()
                raise ApiError(_problem(answer))
            name = ""
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data not in (line, "[DONE]"):
                    yield name, _object(json.loads(data))
                name = line.removeprefix("event: ") if line.startswith("event: ") else ""

    def send(self, request: ApiRequest) -> "httpx.Response":
        """Returns the response to a request, regardless of its status."""
        return self._exchange(request, stream=False)

    def download(self, request: ApiRequest, target: Path | None) -> None:
        """Streams the response into a file, which appears only when complete. If `target` is None,
        writes to stdout.

        Raises the same errors as `json`.
        """
        answer = self._exchange(request, stream=True)
        with contextlib.closing(answer), self._exchanging():
            if not answer.is_success:
                answer.read()
                raise ApiError(_problem(answer))
            if target is None:
                for piece in answer.iter_bytes():
                    sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
                return
            part = target.with_name(f"{target.name}.part")
            with part.open("wb") as file:
                for piece in answer.iter_bytes():
                    file.write(piece)
            part.replace(target)

    def _exchange(self, request: ApiRequest, *, stream: bool) -> "httpx.Response":
        import httpx

        fields = _form(request) if request.files else {"json": request.json}
        with self._exchanging():
            built = self._http.build_request(
                request.method,
                self.base_url + request.path,
                **fields,
                params=request.params or None,
                headers=request.headers,
                content=request.content,
                timeout=httpx.Timeout(request.timeout_s, connect=CONNECT_TIMEOUT_S),
            )
            return self._http.send(built, stream=stream)

    @contextlib.contextmanager
    def _exchanging(self) -> Generator[None]:
        """Converts httpx errors to this client's errors."""
        import httpx

        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _unreachable(self.base_url, error) from error
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise BrokenConnectionError(
                f"The connection to {self.base_url} broke: {reason}"
            ) from error
        except httpx.InvalidURL as error:
            raise _not_an_address(self.base_url) from error


def quoted(*parts: str) -> str:
    """Quotes path segments of a URL. A slash inside a part is kept."""
    return "/".join(quote(part, safe="/") for part in parts)


def _form(request: ApiRequest) -> dict[str, Any]:
    return {
        "files": [
            (
                name,
                (content.name, content.read_bytes())
                if isinstance(content, Path)
                else (None, content),
            )
            for name, content in request.files
        ],
        "data": {name: _form_value(value) for name, value in (request.json or {}).items()},
    }


def _form_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _decoded(answer: "httpx.Response") -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise CliError(
            f"{answer.request.url} did not return JSON.",
            hint="Check that --base-url or STOKER_BASE_URL is the address of a Stoker server.",
        ) from error


def _problem(answer: "httpx.Response") -> ApiProblem:
    error = _error_object(answer)
    progress = error.get("progress")
    return ApiProblem(
        status=answer.status_code,
        code=str(error.get("code") or "unknown"),
        message=str(error.get("message") or f"The server returned status {answer.status_code}."),
        param=error.get("param"),
        request_id=answer.headers.get("x-request-id"),
        retry_after_s=_seconds(answer.headers.get("retry-after")),
        progress=float(progress) if isinstance(progress, int | float) else None,
    )


def _error_object(answer: "httpx.Response") -> JsonObject:
    """Returns the error object. Empty if the response is not from a Stoker server."""
    try:
        return _object(_object(answer.json()).get("error"))
    except ValueError:
        return {}


def _object(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _seconds(retry_after: str | None) -> float | None:
    """Parses Retry-After in seconds. The date form is ignored."""
    return float(retry_after) if retry_after and retry_after.isdecimal() else None


def _unreachable(base_url: str, error: Exception) -> UnreachableError:
    host = urlsplit(base_url).hostname
    start = "Start one with 'stoker serve', or set" if host in LOCAL_HOSTS else "Check"
    return UnreachableError(
        f"Cannot reach a server at {base_url}: {error}",
        hint=proxies.hint(base_url) or f"{start} its address with --base-url or STOKER_BASE_URL.",
    )


def _not_an_address(base_url: str) -> WrongUseError:
    return WrongUseError(
        f"'{base_url}' is not the address of a server.",
        hint="Set --base-url or STOKER_BASE_URL, for example to http://127.0.0.1:8000.",
    )
