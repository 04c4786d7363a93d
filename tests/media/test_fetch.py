"""Server-side request forgery and body limits, against real servers on the loopback interface."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stoker.base.errors import InvalidMediaError
from stoker.media.fetch import Fetcher
from stoker.media.hosts import HostRule, is_global

LIMIT = 1000
PUBLIC = "203.0.114.7"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
INWARD = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.0.9",
    "192.88.99.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "0.0.0.0",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::a00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%1",
    "fec0::1",
    "ff02::1",
]

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Site:
    """A server that answers by path and records its requests."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[bytes] = []
        self.answers: dict[str, bytes | Answer] = {}

    def url(self, path: str = "/", host: str = "example.test", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(request)
            answer = self.answers.get(request.split(b" ")[1].decode(), OK)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(request, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.handle, "127.0.0.1", 0, ssl=ssl_context)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as site:
        yield site


class Names:
    """A resolver with configured answers. The last answer of a name is repeated."""

    def __init__(self, **names: Sequence[Sequence[str]]) -> None:
        self.names = {name.replace("_", "."): list(answers) for name, answers in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            raise OSError("no such name")
        answers = self.names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


LOCAL = {"example_test": [["127.0.0.1"]]}
SYSTEMS = httpx.create_ssl_context()
"""Default SSL context of a fetcher. Reading the certificates for each fetcher costs 70 ms."""


@asynccontextmanager
async def fetching(names: Names | None = None, **options: object) -> AsyncIterator[Fetcher]:
    """Yields a fetcher that may access the private host example.test."""
    options = {"allowed_private": ["example.test"], "ssl_context": SYSTEMS, **options}
    fetcher = Fetcher(resolve=names or Names(**LOCAL), **options)  # type: ignore[arg-type]
    yield fetcher
    await fetcher.close()


async def refused(
    fetcher: Fetcher, url: str, limit_bytes: int = LIMIT, timeout_s: float | None = 5
) -> str:
    """Returns the message of the refusal. Asserts that it reveals nothing about the internal
    network.
    """
    with pytest.raises(InvalidMediaError) as caught:
        await fetcher.fetch(url, limit_bytes=limit_bytes, timeout_s=timeout_s)
    message = caught.value.message
    assert not any(address in message for address in INWARD if address not in ("::", "::1"))
    assert "Errno" not in message
    return message


@pytest.mark.case(10)
class TestAddresses:
    @pytest.mark.parametrize("address", INWARD)
    def test_inward(self, address: str) -> None:
        assert not is_global(address)

    @pytest.mark.parametrize("address", ["8.8.8.8", PUBLIC, "2606:4700::1111", "2a00::1"])
    def test_global(self, address: str) -> None:
        assert is_global(address)

    @pytest.mark.parametrize("address", INWARD)
    async def test_by_name(self, address: str) -> None:
        async with fetching(Names(inside_test=[[address]])) as fetcher:
            assert "STOKER_MEDIA_PRIVATE_HOSTS" in await refused(fetcher, "http://inside.test/")

    @pytest.mark.parametrize("address", INWARD)
    async def test_by_literal(self, address: str) -> None:
        host = f"[{address}]" if ":" in address else address
        async with fetching_for_real() as fetcher:
            await refused(fetcher, f"http://{host}/")

    @pytest.mark.parametrize(
        "host",
        [
            "0x7f.1",
            "0x7f000001",
            "2130706433",
            "017700000001",
            "0177.0.0.1",
            "127.1",
            "0",
            "127.0.0.1.",
            "127.0.0.1..",
            "127。0。0。1",
            "①②⑦.0.0.1",
            "127%2e0.0.1",
            "localhost",
            "LOCALHOST",
            "localhost.",
            "[::1]",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:7f00:1]",
        ],
    )
    async def test_odd_literals(self, host: str, site: Site) -> None:
        async with fetching_for_real() as fetcher:
            await refused(fetcher, f"http://{host}:{site.port}/")
        assert site.requests == []

    async def test_one_private_among_global(self, site: Site) -> None:
        async with fetching(Names(mixed_test=[[PUBLIC, "127.0.0.1"]])) as fetcher:
            await refused(fetcher, site.url(host="mixed.test"))
        assert site.requests == []

    async def test_unknown_name_reads_like_a_private_one(self) -> None:
        async with fetching(Names(inside_test=[["10.0.0.1"]])) as fetcher:
            inside = await refused(fetcher, "http://inside.test/")
            assert await refused(fetcher, "http://unknown.test/") == inside

    async def test_rebinding(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """The fetcher connects to the checked address and does not resolve the name a second
        time.
        """
        names = Names(rebind_test=[[PUBLIC], ["127.0.0.1"]])
        connected: list[str] = []

        async def connect(self: object, host: str, *_: object) -> None:
            connected.append(host)
            raise OSError

        async with fetching(names) as fetcher:
            monkeypatch.setattr("httpcore2.AnyIOBackend.connect_tcp", connect)
            with pytest.raises(OSError):
                await fetcher.fetch(site.url(host="rebind.test"), limit_bytes=LIMIT, timeout_s=5)
            monkeypatch.undo()
            assert connected == [PUBLIC]
            assert names.asked == ["rebind.test"]
            await refused(fetcher, site.url(host="rebind.test"))
        assert site.requests == []


@asynccontextmanager
async def fetching_for_real() -> AsyncIterator[Fetcher]:
    """Yields a fetcher with the system's resolver, which needs no network for literals."""
    fetcher = Fetcher()
    yield fetcher
    await fetcher.close()


class TestUrls:
    @pytest.mark.case(10)
    @pytest.mark.parametrize(
        "url",
        [
            "http://user@example.test/",
            "http://user:secret@example.test/",
            "http://example.test\\@127.0.0.1/",
            "http://127.0.0.1\\@example.test/",
            "http://example.test /",
            " http://example.test/",
            "http://example.test/a b",
            "http://example.test/\r\nHost: inside",
            "http://exam\tple.test/",
            "http://example.test/\x00",
            "http://example.test\u2028/",
            "http://example.test/\ud800",
            "http://example.test:0/",
            "http://example.test:65536/",
            "http://example.test:80:80/",
            "http://[::1]example.test/",
            "http://[fe80::1%25eth0]/",
            "http://exam<ple.test/",
            "http://example..test/",
            "http:///path",
            "http:example.test",
            "ftp://example.test/",
            "//example.test/",
            "example.test",
            "http://example.test/" + "a" * 9000,
        ],
    )
    async def test_refused(self, url: str) -> None:
        names = Names(**LOCAL)
        async with fetching(names) as fetcher:
            await refused(fetcher, url)
        assert names.asked == []

    async def test_international_name(self, site: Site) -> None:
        name = "xn--bcher-kva.test"
        names = Names(**{name: [["127.0.0.1"]]})
        async with fetching(names, allowed_private=["bücher.test"]) as fetcher:
            url = site.url(host="Bücher.test")
            assert await fetcher.fetch(url, limit_bytes=LIMIT, timeout_s=5) == b"hello"
        assert f"Host: {name}:{site.port}".encode() in site.requests[0]

    async def test_fragment_is_no_host(self, site: Site) -> None:
        names = Names(**LOCAL)
        async with fetching(names) as fetcher:
            await fetcher.fetch(site.url("#@10.0.0.1/"), limit_bytes=LIMIT, timeout_s=5)
        assert names.asked == ["example.test"]
        assert site.requests[0].startswith(b"GET / HTTP/1.1\r\n")

    async def test_trailing_dot_is_the_same_host(self, site: Site) -> None:
        async with fetching() as fetcher:
            url = site.url(host="Example.TEST.")
            assert await fetcher.fetch(url, limit_bytes=LIMIT, timeout_s=5) == b"hello"

    @pytest.mark.case(10)
    async def test_request_carries_nothing_of_the_client(self, site: Site) -> None:
        async with fetching() as fetcher:
            await fetcher.fetch(site.url("/a?b=%20c"), limit_bytes=LIMIT, timeout_s=5)
        assert site.requests[0].decode().split("\r\n") == [
            "GET /a?b=%20c HTTP/1.1",
            f"Host: example.test:{site.port}",
            "User-Agent: stoker",
            "Accept: */*",
            "Accept-Encoding: identity",
            "",
            "",
        ]

    async def test_proxies_of_the_environment_are_not_used(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
        async with fetching() as fetcher:
            assert await fetcher.fetch(site.url(), limit_bytes=LIMIT, timeout_s=5) == b"hello"


class TestHostLists:
    @pytest.mark.parametrize(
        ("entry", "host", "matches"),
        [
            ("example.org", "example.org", True),
            ("Example.ORG.", "example.org", True),
            ("example.org", "a.example.org", False),
            ("example.org", "notexample.org", False),
            (".example.org", "a.b.example.org", True),
            (".example.org", "example.org", False),
            (".example.org", "notexample.org", False),
            ("example.org:80", "example.org", True),
            ("example.org:443", "example.org", False),
            ("[::1]:80", "::1", True),
            ("bücher.example", "xn--bcher-kva.example", True),
        ],
    )
    def test_rules(self, entry: str, host: str, matches: bool) -> None:
        assert HostRule.parse(entry).matches(host, 80) is matches

    @pytest.mark.parametrize(
        "entry", ["", ".", "http://a", "a/b", "u@a", "a b", "a:b", "*.a", "a?"]
    )
    def test_malformed_rules(self, entry: str) -> None:
        with pytest.raises(ValueError, match="not a host"):
            HostRule.parse(entry)

    async def test_only_allowed_hosts(self, site: Site) -> None:
        names = Names(**LOCAL, other_test=[[PUBLIC]])
        async with fetching(names, allowed_hosts=["good.test"]) as fetcher:
            assert "STOKER_MEDIA_HOSTS" in await refused(fetcher, site.url(host="other.test"))
            await fetcher.fetch(site.url(), limit_bytes=LIMIT, timeout_s=5)
        assert names.asked == ["example.test"]

    async def test_allowed_is_not_private(self, site: Site) -> None:
        async with fetching(allowed_hosts=["example.test"], allowed_private=[]) as fetcher:
            await refused(fetcher, site.url())

    async def test_private_port(self, site: Site) -> None:
        entry = f"example.test:{site.port}"
        async with fetching(allowed_private=[entry]) as fetcher:
            await fetcher.fetch(site.url(), limit_bytes=LIMIT, timeout_s=5)
        async with fetching(allowed_private=["example.test:1"]) as fetcher:
            await refused(fetcher, site.url())


def redirect(location: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} x\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.case(10)
class TestRedirects:
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_followed(self, site: Site, status: int) -> None:
        site.answers["/a/b"] = redirect("../c?d", status)
        async with fetching() as fetcher:
            body = await fetcher.fetch(site.url("/a/b"), limit_bytes=LIMIT, timeout_s=5)
        assert body == b"hello"
        assert site.requests[1].startswith(b"GET /c?d ")

    @pytest.mark.parametrize(
        "location",
        [
            "http://127.0.0.1:{port}/",
            "http://inside.test:{port}/",
            "//inside.test:{port}/",
            "http://u:p@example.test:{port}/",
            "http://example.test\\@inside.test:{port}/",
            "file:///etc/passwd",
            "ftp://example.test/",
            "http://[",
            "http://exam ple.test:{port}/",
        ],
    )
    async def test_refused(self, site: Site, location: str) -> None:
        site.answers["/"] = redirect(location.format(port=site.port))
        names = Names(**LOCAL, inside_test=[["127.0.0.1"]])
        names.names["127.0.0.1"] = [["127.0.0.1"]]
        async with fetching(names) as fetcher:
            await refused(fetcher, site.url())
        assert len(site.requests) == 1

    async def test_every_hop_is_resolved_and_checked(self, site: Site) -> None:
        site.answers["/"] = redirect(site.url("/next", host="other.test"))
        names = Names(**LOCAL, other_test=[[PUBLIC]])
        async with fetching(names, allowed_hosts=["example.test"]) as fetcher:
            assert "STOKER_MEDIA_HOSTS" in await refused(fetcher, site.url())

    async def test_loop(self, site: Site) -> None:
        site.answers["/"] = redirect("/")
        async with fetching() as fetcher:
            assert "3 times" in await refused(fetcher, site.url())
        assert len(site.requests) == 4

    async def test_as_many_as_allowed(self, site: Site) -> None:
        for hop in range(3):
            site.answers[f"/{hop}"] = redirect(f"/{hop + 1}")
        async with fetching() as fetcher:
            url = site.url("/0")
            assert await fetcher.fetch(url, limit_bytes=LIMIT, timeout_s=5) == b"hello"

    async def test_without_location(self, site: Site) -> None:
        site.answers["/"] = b"HTTP/1.1 302 x\r\nContent-Length: 0\r\n\r\n"
        async with fetching() as fetcher:
            assert "302" in await refused(fetcher, site.url())


class TestTls:
    async def test_certificate_is_checked_against_the_name(self, tmp_path: Path) -> None:
        server, client = certificates(tmp_path, "example.test")
        async with serving(server) as site:
            names = Names(**LOCAL, other_test=[["127.0.0.1"]])
            private = ["example.test", "other.test"]
            async with fetching(names, ssl_context=client, allowed_private=private) as fetcher:
                url = site.url(scheme="https")
                assert await fetcher.fetch(url, limit_bytes=LIMIT, timeout_s=5) == b"hello"
                other = site.url(scheme="https", host="other.test")
                assert "certificate" in await refused(fetcher, other)
        assert len(site.requests) == 1

    async def test_no_downgrade(self, tmp_path: Path, site: Site) -> None:
        server, client = certificates(tmp_path, "example.test")
        async with serving(server) as secure:
            secure.answers["/"] = redirect(site.url())
            async with fetching(ssl_context=client) as fetcher:
                assert "https to http" in await refused(fetcher, secure.url(scheme="https"))
        assert site.requests == []


class TestBodies:
    async def test_declared_size_is_believed_when_too_large(self, site: Site) -> None:
        site.answers["/"] = b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"
        async with fetching() as fetcher:
            assert "1000 bytes" in await refused(fetcher, site.url())

    @pytest.mark.case(11)
    async def test_reading_stops_at_the_limit(self, site: Site) -> None:
        sent = 0
        total = 64 * 1024 * 1024

        async def flood(_: bytes, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while sent < total:
                writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
                await writer.drain()
                sent += 0x10000

        site.answers["/"] = flood
        async with fetching() as fetcher:
            assert "1 MiB" in await refused(fetcher, site.url(), limit_bytes=1024 * 1024)
        # The number of bytes in the sockets' buffers is unknown.
        assert sent < 16 * 1024 * 1024

    async def test_exactly_the_limit(self, site: Site) -> None:
        async with fetching() as fetcher:
            assert await fetcher.fetch(site.url(), limit_bytes=5, timeout_s=5) == b"hello"
            await refused(fetcher, site.url(), limit_bytes=4)

    async def test_slow_drip(self, site: Site) -> None:
        async def drip(_: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)

        site.answers["/"] = drip
        async with fetching() as fetcher:
            assert "0.2 s" in await refused(fetcher, site.url(), timeout_s=0.2)

    async def test_ceiling(self, site: Site) -> None:
        async def silence(_: bytes, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.3)

        site.answers["/"] = silence
        async with fetching(ceiling_s=0.1) as fetcher:
            assert "0.1 s" in await refused(fetcher, site.url(), timeout_s=None)
            assert "0.1 s" in await refused(fetcher, site.url(), timeout_s=60)

    async def test_slow_resolver(self) -> None:
        async def resolve(host: str, port: int) -> Sequence[str]:
            await asyncio.sleep(5)
            return [PUBLIC]

        fetcher = Fetcher(resolve=resolve)
        assert "0.05 s" in await refused(fetcher, "http://slow.test/", timeout_s=0.05)
        await fetcher.close()

    async def test_concurrency(self, site: Site) -> None:
        busy = most = 0
        two = asyncio.Event()

        async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            if busy == 2:
                two.set()
            await two.wait()
            await asyncio.sleep(0.01)
            busy -= 1
            writer.write(OK)
            await writer.drain()

        site.answers["/"] = answer
        # The third place remains free for another account.
        async with fetching(concurrency=3) as fetcher:
            fetches = [fetcher.fetch(site.url(), limit_bytes=9, timeout_s=30) for _ in range(6)]
            assert await asyncio.gather(*fetches) == [b"hello"] * 6
        assert most == 2

    @pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "identity, gzip"])
    async def test_encoded(self, site: Site, encoding: str) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: 5\r\n\r\n"
        site.answers["/"] = head.encode() + b"hello"
        async with fetching() as fetcher:
            assert "encoded" in await refused(fetcher, site.url())

    @pytest.mark.parametrize("status", [201, 204, 206, 304, 401, 403, 404, 429, 500])
    async def test_status(self, site: Site, status: int) -> None:
        site.answers["/"] = f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode()
        async with fetching() as fetcher:
            assert str(status) in await refused(fetcher, site.url())

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhello",
            b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
            b"",
        ],
    )
    async def test_broken(self, site: Site, answer: bytes) -> None:
        site.answers["/"] = answer
        async with fetching() as fetcher:
            message = await refused(fetcher, site.url())
            assert "SSH" not in message
            # The connection's place is released.
            assert await fetcher.fetch(site.url("/ok"), limit_bytes=9, timeout_s=5) == b"hello"

    async def test_unreachable(self, site: Site) -> None:
        async with serving() as gone:
            pass
        async with fetching() as fetcher:
            assert "unreachable" in await refused(fetcher, gone.url())

    async def test_next_address_is_tried(self, site: Site) -> None:
        names = Names(example_test=[["127.0.0.2", "127.0.0.1"]])
        async with fetching(names) as fetcher:
            assert await fetcher.fetch(site.url(), limit_bytes=9, timeout_s=5) == b"hello"


def certificates(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns the contexts of a server with a self-signed certificate and of a client that trusts
    it.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=pem)
