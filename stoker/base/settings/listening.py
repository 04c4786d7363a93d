"""Settings of the HTTP server: addresses, proxies, logs and connections."""

from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings

from stoker.base.cors_origins import Origin
from stoker.base.logs import Style


def _network(value: str) -> str:
    return str(ip_network(value))


class ListeningSettings(BaseSettings):
    """Settings of the HTTP server: addresses, proxies, logs and connections. Read by `Settings`."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one."
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description=(
            "HTTP workers: processes that read, check and stream calls of models behind the same "
            "port. 1: the server does this itself. None: a quarter of the cores, from 1 to 8."
        ),
    )
    metrics_host: str = Field(
        default="127.0.0.1", description="Address that serves metrics without a key."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description=(
            "Port that serves metrics without a key, also of `stoker node host`. None: "
            "metrics need an operator's key, and a node host serves none."
        ),
    )
    allowed_hosts: list[str] = Field(
        default=["*"], description="Accepted Host headers; other requests get a 400."
    )
    trusted_proxies: list[Annotated[str, AfterValidator(_network)]] = Field(
        default=["127.0.0.1", "::1"],
        description=(
            "Addresses and networks of reverse proxies whose `X-Forwarded-For` and "
            '`X-Forwarded-Proto` headers are trusted, as in `["10.0.0.0/8"]`.'
        ),
    )
    cors_origins: list[Origin] = Field(
        default=[],
        description=(
            "Origins of web pages that may call the API from a browser, as in "
            '`["https://chat.example"]`; `["*"]` allows all. Empty: none.'
        ),
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )
    log_format: Style = Field(
        default="auto",
        description=(
            "`json`: one JSON object per line. `text`: for people. `auto`: `text` if the log "
            "goes to a terminal, otherwise `json`."
        ),
    )
    connections_limit: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description=(
            "Maximum number of open connections; 0: 10,000. The limit is at most 80% of the "
            "files that the process may open."
        ),
    )
    connections_per_address: int = Field(
        default=2048,
        ge=0,
        le=1_000_000,
        description=(
            "Maximum number of open connections from one address, such as a reverse proxy's "
            "(for IPv6: from one /64 network). 0: no limit per address."
        ),
    )
    head_timeout_s: float = Field(
        default=20,
        gt=0,
        le=3600,
        description=(
            "Longest time to receive a complete request head, seconds. The connection is "
            "then closed."
        ),
    )
    body_timeout_s: float = Field(
        default=60,
        gt=0,
        le=3600,
        description=(
            "Longest time in which less than 16 KiB of a request's body arrive, seconds. "
            "The request is then aborted."
        ),
    )
    answer_timeout_s: float = Field(
        default=60,
        gt=0,
        le=3600,
        description=(
            "Longest time in which a client reads less than 16 KiB of a response, "
            "seconds. The connection is then closed."
        ),
    )
    loop_step_limit_ms: int = Field(
        default=100,
        ge=10,
        le=60_000,
        description="Event loop steps that take longer are logged, ms.",
    )
