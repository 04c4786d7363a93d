"""What a connection may send: sizes, numbers and forms, by raw sockets against a real server."""

import pytest

from stoker.server.edge.limits import HEAD_BYTES, HEADERS, PIPELINED, TARGET_BYTES
from tests.server.support import END, GET, MIB, POST, check, others_are_answered, too_large
from tests.support.raw import ask, pour
from tests.support.server import Server


@pytest.mark.case(19)
class TestH1:
    """An endless head costs what a head may have, and nobody else's time."""

    def test_h1_endless_header(self, gateway: Server) -> None:
        """82 MiB of it held the server for 17 s."""
        sent, found = pour(gateway, GET + b"x-a: ", b"a" * 4096, 64 * MIB)
        too_large(found)
        # What the kernel's buffers hold beside.
        assert sent < 16 * MIB
        others_are_answered(gateway)

    @pytest.mark.parametrize("excess", [False, True])
    def test_h1_a_head_in_one_piece(self, gateway: Server, excess: bool) -> None:
        line = b"x-a: " + b"a" * (HEAD_BYTES - 200 + 400 * excess) + b"\r\n"
        found = ask(gateway, GET + line + END)
        if excess:
            too_large(found)
        else:
            assert [one.status for one in found] == [200]

    def test_h1_a_head_in_drips(self, gateway: Server) -> None:
        """Just below the limit, in a thousand pieces: it is as good as any."""
        piece = b"a" * 60
        found = ask(gateway, GET + b"x-a: ", *[piece] * 1000, b"\r\n" + END)
        assert [one.status for one in found] == [200]

    @pytest.mark.parametrize("count", [HEADERS - 2, 200_000])
    def test_h1_many_headers(self, gateway: Server, count: int) -> None:
        found = ask(gateway, GET + b"a:b\r\n" * min(count, 60_000) + END)
        if count < HEADERS:
            assert [one.status for one in found] == [200]
            return
        too_large(found)
        _, found = pour(gateway, GET, b"a:b\r\n", 5 * count)
        too_large(found)

    def test_h1_endless_name(self, gateway: Server) -> None:
        too_large(pour(gateway, GET, b"a" * 4096, 64 * MIB)[1])

    @pytest.mark.parametrize("length", [TARGET_BYTES - 100, TARGET_BYTES + 100])
    def test_h1_long_target(self, gateway: Server, length: int) -> None:
        target = b"/health?a=" + b"a" * length
        found = ask(gateway, b"GET " + target + b" HTTP/1.1\r\nhost: test\r\n" + END)
        if length < TARGET_BYTES:
            assert [one.status for one in found] == [200]
        else:
            check(found, 414, "URITooLongError", "uri_too_long")

    def test_h1_endless_target(self, gateway: Server) -> None:
        _, found = pour(gateway, b"GET /", b"a" * 4096, 64 * MIB)
        check(found, 414, "URITooLongError", "uri_too_long")

    def test_h1_endless_empty_lines(self, gateway: Server) -> None:
        too_large(pour(gateway, b"", b"\r\n" * 2048, 64 * MIB)[1])

    def test_h1_endless_trailers(self, gateway: Server) -> None:
        beginning = POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        for piece in (b"a" * 4096, b"a: b\r\n" * 700):
            sent, found = pour(gateway, beginning, piece, 64 * MIB)
            assert sent < 16 * MIB
            # 401 where that was said before the trailers were too many; then only the end is left.
            assert [one.status for one in found] in ([431], [401])
        others_are_answered(gateway)

    def test_h1_trailers_are_no_headers(self, gateway: Server) -> None:
        """Whoever filters headers before us would not see them."""
        key = gateway.operator_key.encode()
        head = b"GET /v1/accounts HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n" + END
        for good in (False, True):
            field = b"authorization: Bearer " + key + b"\r\n"
            head = head.replace(b"host", field + b"host") if good else head
            (found,) = ask(gateway, head + b"0\r\n" + field + b"\r\n")
            assert found.status == (200 if good else 401)

    def test_h1_endless_chunk_extension(self, gateway: Server) -> None:
        beginning = POST + b"transfer-encoding: chunked\r\n\r\n1;a="
        sent, found = pour(gateway, beginning, b"a" * 4096, 64 * MIB)
        assert sent < 16 * MIB
        assert [one.status for one in found] in ([431], [401])
        others_are_answered(gateway)

    def test_h1_chunks_of_a_byte_are_a_body(self, gateway: Server) -> None:
        """200,000 of them: five bytes around each."""
        head = POST + b"authorization: Bearer " + gateway.operator_key.encode() + b"\r\n"
        chunks = b"1\r\n \r\n" * 200_000 + b"2\r\n{}\r\n0\r\n\r\n"
        (found,) = ask(gateway, head + b"transfer-encoding: chunked\r\n" + END, chunks)
        assert (found.status, found.error["code"]) == (400, "invalid_request")
        assert "'account_id' is required" in found.error["message"]

    @pytest.mark.fault("d4")
    def test_h1_pipelined(self, gateway: Server) -> None:
        request = GET + b"\r\n"
        found = ask(gateway, request * (PIPELINED // 2) + GET + END)
        assert [one.status for one in found] == [200] * (PIPELINED // 2 + 1)

    @pytest.mark.fault("d4")
    def test_h1_endlessly_pipelined(self, gateway: Server) -> None:
        ask(gateway, (GET + b"\r\n") * 10_000)
        others_are_answered(gateway)


SMUGGLED = b"GET /v1/accounts HTTP/1.1\r\nhost: test\r\n\r\n"
FORMS: dict[str, bytes] = {
    "length and chunks": b"content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"transfer-encoding: chunked\r\ncontent-length: 6\r\n\r\n0\r\n\r\n",
    "two lengths": b"content-length: 0\r\ncontent-length: 44\r\n\r\n",
    "two equal lengths": b"content-length: 44\r\ncontent-length: 44\r\n\r\n",
    "a list of lengths": b"content-length: 0, 44\r\n\r\n",
    "a length with a sign": b"content-length: +44\r\n\r\n",
    "a length beyond 64 bits": b"content-length: 18446744073709551660\r\n\r\n",
    "bare line feeds": b"content-length: 0\n\n",
    "a folded header": b"x-a: b\r\n content-length: 44\r\ncontent-length: 0\r\n\r\n",
    "a space before the colon": b"content-length : 44\r\n\r\n",
    "identity": b"transfer-encoding: identity\r\ncontent-length: 0\r\n\r\n",
    "an unknown coding": b"transfer-encoding: xchunked\r\n\r\n",
    "a coding before chunked": b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "codings in two headers": b"transfer-encoding: gzip\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "two hosts": b"host: other\r\ncontent-length: 0\r\n\r\n",
    "a size beyond 64 bits": b"transfer-encoding: chunked\r\n\r\n10000000000000002\r\n{}\r\n",
}


class TestSmuggling:
    @pytest.mark.parametrize("form", FORMS)
    def test_smuggled_request_gets_no_answer_of_its_own(self, hasty: Server, form: str) -> None:
        (found,) = ask(hasty, POST + FORMS[form] + SMUGGLED)
        assert found.status in (400, 401)

    @pytest.mark.parametrize(
        "form", ["two hosts", "a coding before chunked", "codings in two headers"]
    )
    def test_what_proxies_read_otherwise_is_refused(self, gateway: Server, form: str) -> None:
        found = ask(gateway, POST + FORMS[form])
        check(found, 400, "InvalidRequestError", "invalid_request")

    def test_a_host_is_needed(self, gateway: Server) -> None:
        found = ask(gateway, b"GET /health HTTP/1.1\r\n" + END)
        check(found, 400, "InvalidRequestError", "invalid_request")

    def test_what_is_no_http(self, gateway: Server) -> None:
        found = ask(gateway, b"\x16\x03\x01 hello\r\n\r\n")
        check(found, 400, "InvalidRequestError", "invalid_request")

    def test_body_of_an_upgrade_is_no_request(self, gateway: Server) -> None:
        upgrade = b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n"
        found = ask(gateway, POST + upgrade % len(SMUGGLED), SMUGGLED, pause_s=0.05)
        assert check(found, 400, "InvalidRequestError", "invalid_request").error["param"]

    def test_upgrade_is_passed_over(self, gateway: Server) -> None:
        upgrade = b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"
        (found,) = ask(gateway, GET + upgrade, SMUGGLED)
        assert (found.status, found.headers["connection"]) == (200, "close")
