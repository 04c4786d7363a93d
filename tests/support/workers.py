"""Servers with HTTP workers, and requests that reach them."""

import json
import time

import httpx
import psutil

from tests.support.server import Server

_GIVEN_S = 30
BY_SERVER = {"te": "trailers"}
"""Header of requests that workers leave to the server."""


def wait_for_workers(server: Server) -> None:
    deadline = time.monotonic() + _GIVEN_S
    with server.client() as client:
        while client.get("/health").raise_for_status().json()["warning"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def worker_processes(server: Server) -> list[psutil.Process]:
    assert server.process
    command = psutil.Process(server.process.pid).cmdline()
    return [
        worker
        for host in psutil.Process(server.process.pid).children()
        if host.cmdline() == command
        for worker in host.children()
    ]


def key_of(client: httpx.Client) -> str:
    return client.headers["authorization"].removeprefix("Bearer ")


def request_of(key: str, path: str, body: object, **headers: str) -> bytes:
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: test",
        "content-type: application/json",
        f"content-length: {len(content)}",
        f"authorization: Bearer {key}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content
