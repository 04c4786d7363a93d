"""The client of an application."""

from typing import TYPE_CHECKING, Self

from ..async_transport import AsyncTransport
from ..client import Client
from ..errors import ACCOUNT_HEADER
from ..retry import RetryLimits
from ..sdk import openai_sdk
from ..settings import Connection
from .api import AsyncApi
from .resources import AsyncResources

if TYPE_CHECKING:
    import openai

# Longer than the server's limits of waits and of inference, so that the server answers first.
TIMEOUT_S = 1800.0
RETRIES_S = 600.0


class AsyncStoker(AsyncResources):
    """Calls one Stoker server. Use it as a context manager, or close it after use."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        account: str | None = None,
        timeout: float = TIMEOUT_S,
        max_retries: int = 4,
        max_retry_s: float = RETRIES_S,
        max_connections: int = 32,
    ) -> None:
        """Args:
        base_url: address of the server. Default: STOKER_BASE_URL, else http://127.0.0.1:8000.
        api_key: default: STOKER_API_KEY.
        account: account that an operator key acts for. Default: STOKER_ACCOUNT.
        timeout: longest time without data from the server, seconds.
        max_retries: retries of one request. A wait for a model that loads is not one.
        max_retry_s: longest time from a request's first attempt to its last one, seconds.
        """
        self._connection = Connection.read(base_url, api_key, account)
        self._transport = AsyncTransport(
            self._connection.base_url,
            self._connection.api_key,
            connections=max_connections,
            account=self._connection.account,
        )
        limits = RetryLimits(attempts=max_retries + 1, total_s=max_retry_s)
        super().__init__(AsyncApi(self._transport, limits, timeout, self._open_client))

    @property
    def base_url(self) -> str:
        return self._transport.base_url

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def openai(self) -> "openai.AsyncOpenAI":
        """Returns a client of the OpenAI SDK for the server's OpenAI endpoints.

        Raises `WrongUseError` if the package `openai` is not installed.
        """
        account = self._connection.account
        return openai_sdk().AsyncOpenAI(
            base_url=f"{self.base_url}/v1",
            api_key=self._connection.api_key,
            default_headers={ACCOUNT_HEADER: account} if account else None,
        )

    def _open_client(self, connections: int) -> Client:
        connection = self._connection
        return Client(
            connection.base_url,
            connection.api_key,
            connections=connections,
            account=connection.account,
        )
