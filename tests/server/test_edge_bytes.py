"""Sizes, counts and formats that a connection may send, tested with raw sockets against a real
server.
"""

import pytest

from stoker.server.edge.limits import HEAD_BYTES, HEADERS, PIPELINED, TARGET_BYTES
from tests.server.support import END, GET, MIB, POST, check, others_are_answered, too_large
from tests.support.raw import ask, pour
from tests.support.server import Server


@pytest.mark.case(19)
class TestH1:
    """An endless head costs no more than the head limit and does not delay other clients."""

    def test_h1_endless_header(self, gateway: Server) -> None:
        """An endless header is rejected early. 82 MiB of it once blocked the server for 17 s."""
        sent, responses = pour(gateway, GET + b"x-a: ", b"a" * 4096, 64 * MIB)
        too_large(responses)
        # The margin covers the kernel's buffers.
        assert sent < 16 * MIB
        others_are_answered(gateway)

    @pytest.mark.parametrize("excess", [False, True])
    def test_h1_a_head_in_one_piece(self, gateway: Server, excess: bool) -> None:
        line = b"x-a: " + b"a" * (HEAD_BYTES - 200 + 400 * excess) + b"\r\n"
        responses = ask(gateway, GET + line + END)
        if excess:
            too_large(responses)
        else:
            assert [response.status for response in responses] == [200]

    def test_h1_a_head_in_drips(self, gateway: Server) -> None:
        """A head just below the limit is accepted when it arrives in a thousand pieces."""
        piece = b"a" * 60
        responses = ask(gateway, GET + b"x-a: ", *[piece] * 1000, b"\r\n" + END)
        assert [response.status for response in responses] == [200]

    @pytest.mark.parametrize("count", [HEADERS - 2, 200_000])
    def test_h1_many_headers(self, gateway: Server, count: int) -> None:
        responses = ask(gateway, GET + b"a:b\r\n" * min(count, 60_000) + END)
        if count < HEADERS:
            assert [response.status for response in responses] == [200]
            return
        too_large(responses)
        _, responses = pour(gateway, GET, b"a:b\r\n", 5 * count)
        too_large(responses)

    def test_h1_endless_name(self, gateway: Server) -> None:
        too_large(pour(gateway, GET, b"a" * 4096, 64 * MIB)[1])

    @pytest.mark.parametrize("length", [TARGET_BYTES - 100, TARGET_BYTES + 100])
    def test_h1_long_target(self, gateway: Server, length: int) -> None:
        target = b"/health?a=" + b"a" * length
        responses = ask(gateway, b"GET " + target + b" HTTP/1.1\r\nhost: test\r\n" + END)
        if length < TARGET_BYTES:
            assert [response.status for response in responses] == [200]
        else:
            check(responses, 414, "URITooLongError", "uri_too_long")

    def test_h1_endless_target(self, gateway: Server) -> None:
        _, responses = pour(gateway, b"GET /", b"a" * 4096, 64 * MIB)
        check(responses, 414, "URITooLongError", "uri_too_long")

    def test_h1_endless_empty_lines(self, gateway: Server) -> None:
        too_large(pour(gateway, b"", b"\r\n" * 2048, 64 * MIB)[1])

    def test_h1_endless_trailers(self, gateway: Server) -> None:
        beginning = POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        for piece in (b"a" * 4096, b"a: b\r\n" * 700):
            sent, responses = pour(gateway, beginning, piece, 64 * MIB)
            assert sent < 16 * MIB
            # 401 if the answer was sent before the trailers exceeded the limit. The server then
            # only closes the connection.
            assert [response.status for response in responses] in ([431], [401])
        others_are_answered(gateway)

    def test_h1_trailers_are_no_headers(self, gateway: Server) -> None:
        """Trailers are not used as headers, because a proxy that filters headers would not see
        them.
        """
        key = gateway.operator_key.encode()
        head = b"GET /v1/accounts HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n" + END
        for good in (False, True):
            field = b"authorization: Bearer " + key + b"\r\n"
            head = head.replace(b"host", field + b"host") if good else head
            (response,) = ask(gateway, head + b"0\r\n" + field + b"\r\n")
            assert response.status == (200 if good else 401)

    def test_h1_endless_chunk_extension(self, gateway: Server) -> None:
        beginning = POST + b"transfer-encoding: chunked\r\n\r\n1;a="
        sent, responses = pour(gateway, beginning, b"a" * 4096, 64 * MIB)
        assert sent < 16 * MIB
        assert [response.status for response in responses] in ([431], [401])
        others_are_answered(gateway)

    def test_h1_chunks_of_a_byte_are_a_body(self, gateway: Server) -> None:
        """200,000 chunks of one byte, each with five bytes of framing, are accepted as a body."""
        head = POST + b"authorization: Bearer " + gateway.operator_key.encode() + b"\r\n"
        chunks = b"1\r\n \r\n" * 200_000 + b"2\r\n{}\r\n0\r\n\r\n"
        (response,) = ask(gateway, head + b"transfer-encoding: chunked\r\n" + END, chunks)
        assert (response.status, response.error["code"]) == (400, "invalid_request")
        assert "'account_id' is required" in response.error["message"]

    @pytest.mark.fault("d4")
    def test_h1_pipelined(self, gateway: Server) -> None:
        request = GET + b"\r\n"
        responses = ask(gateway, request * (PIPELINED // 2) + GET + END)
        assert [response.status for response in responses] == [200] * (PIPELINED // 2 + 1)

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
        (response,) = ask(hasty, POST + FORMS[form] + SMUGGLED)
        assert response.status in (400, 401)

    @pytest.mark.parametrize(
        "form", ["two hosts", "a coding before chunked", "codings in two headers"]
    )
    def test_what_proxies_read_otherwise_is_refused(self, gateway: Server, form: str) -> None:
        responses = ask(gateway, POST + FORMS[form])
        check(responses, 400, "InvalidRequestError", "invalid_request")

    def test_a_host_is_needed(self, gateway: Server) -> None:
        responses = ask(gateway, b"GET /health HTTP/1.1\r\n" + END)
        check(responses, 400, "InvalidRequestError", "invalid_request")

    def test_what_is_no_http(self, gateway: Server) -> None:
        responses = ask(gateway, b"\x16\x03\x01 hello\r\n\r\n")
        check(responses, 400, "InvalidRequestError", "invalid_request")

    def test_body_of_an_upgrade_is_no_request(self, gateway: Server) -> None:
        upgrade = b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n"
        responses = ask(gateway, POST + upgrade % len(SMUGGLED), SMUGGLED, pause_s=0.05)
        assert check(responses, 400, "InvalidRequestError", "invalid_request").error["param"]

    def test_upgrade_is_passed_over(self, gateway: Server) -> None:
        upgrade = b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"
        (response,) = ask(gateway, GET + upgrade, SMUGGLED)
        assert (response.status, response.headers["connection"]) == (200, "close")
