"""The command line with the proxies of the environment."""

from importlib.util import find_spec

import httpx
import pytest

from stoker.client import proxies
from stoker.client.errors import WrongUseError
from tests.cli.support import Cli
from tests.support.server import Server

DEAD = "http://127.0.0.1:9"
PROXIES = {
    "http": {"HTTP_PROXY": DEAD, "http_proxy": DEAD},
    "all": {"ALL_PROXY": DEAD, "all_proxy": DEAD},
    "socks": {"ALL_PROXY": "socks5://127.0.0.1:9", "all_proxy": "socks5://127.0.0.1:9"},
    "unknown": {"ALL_PROXY": "gopher://127.0.0.1:9"},
    "other hosts alone": {"HTTP_PROXY": DEAD, "NO_PROXY": "example.org"},
}


@pytest.mark.parametrize("env", PROXIES.values(), ids=PROXIES)
def test_a_server_of_this_machine_needs_none(server: Server, env: dict[str, str]) -> None:
    for base_url in (server.base_url, server.base_url.replace("127.0.0.1", "localhost")):
        done = Cli(base_url, server.operator_key, env).run("accounts", "list")
        assert done.returncode == 0, done.stderr


def test_elsewhere_the_proxy_is_asked_and_named() -> None:
    env = {"HTTP_PROXY": "http://user:secret@127.0.0.1:9", "NO_PROXY": "other.example"}
    done = Cli("http://models.example", "sk-a-b", env).run("models")
    assert done.returncode == 1
    assert "proxy http://127.0.0.1:9" in done.stderr and "secret" not in done.stderr
    assert "NO_PROXY=models.example" in done.stderr


@pytest.mark.parametrize(
    ("name", "words"), [("socks", "a SOCKS proxy"), ("unknown", "cannot be used")]
)
def test_a_proxy_that_cannot_be_used(name: str, words: str) -> None:
    """An unusable proxy is reported in one line, without a traceback."""
    if name == "socks" and find_spec("socksio"):
        pytest.skip("the library is installed")
    done = Cli("http://models.example", "sk-a-b", PROXIES[name]).run("models")
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.9.9.9", True),
        ("http://localhost.", True),
        ("http://a.localhost:1", True),
        ("http://[::1]:8000", True),
        ("http://[::ffff:127.0.0.1]", True),
        ("http://0.0.0.0:8000", True),
        ("http://localhost.example", False),
        ("http://10.0.0.1", False),
        ("https://models.example", False),
        ("http://", False),
    ],
)
def test_is_loopback(url: str, expected: bool) -> None:
    assert proxies.is_loopback(url) is expected


def test_certificates_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/does/not/exist")
    with pytest.raises((OSError, WrongUseError)):
        proxies.client(httpx.Client, "https://localhost", verify=True)
    assert isinstance(proxies.client(httpx.Client, "http://localhost", verify=False), httpx.Client)
