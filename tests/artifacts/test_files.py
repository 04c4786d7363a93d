"""Whole files are sent, replaced, checked and rejected."""

import hashlib
import time

import pytest

from tests.artifacts.support import MIB, Raw, Uploading, data, digest, error, eventually, sent_range


class TestWholeFile:
    @pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB])
    def test_received(self, upload: Uploading, size: int) -> None:
        content = data(size)
        answer = upload.put("model.safetensors", content)
        assert answer.status_code == 200
        whole = hashlib.sha256(content).hexdigest() if size <= MIB else None
        expected = {
            "path": "model.safetensors",
            "size": size,
            "received": size,
            "complete": True,
            "sha256": whole,
        }
        assert answer.json() == expected
        parts = [content[begin : begin + MIB] for begin in range(0, size, MIB)]
        assert upload.file("model.safetensors") == {
            **expected,
            "parts": [
                {"number": number, "size": len(part), "sha256": hashlib.sha256(part).hexdigest()}
                for number, part in enumerate(parts, 1)
            ],
        }
        assert upload.stored() == [content]

    @pytest.mark.parametrize("size", [0, 5, MIB, 2 * MIB + 5])
    def test_length_untold(self, upload: Uploading, size: int) -> None:
        content = data(size)
        answer = upload.put(
            "a.safetensors", (content[n : n + 70_000] for n in range(0, size, 70_000))
        )
        assert (answer.json()["size"], answer.json()["complete"]) == (size, True)
        assert upload.stored() == [content]

    def test_folders(self, upload: Uploading) -> None:
        upload.put("1_Pooling/config.json", b"{}").raise_for_status()
        assert upload.file("1_Pooling/config.json")["complete"]

    @pytest.mark.parametrize("size", [3, 2 * MIB])
    def test_replaces_what_was_there(self, upload: Uploading, size: int) -> None:
        upload.put("a.txt", data(MIB + 9, seed=1)).raise_for_status()
        content = data(size, seed=2)
        assert upload.put("a.txt", content).json()["size"] == size
        assert upload.stored() == [content]

    def test_idempotency_of_repeating(self, upload: Uploading) -> None:
        assert upload.put("a.txt", b"abc").json() == upload.put("a.txt", b"abc").json()


class TestDigest:
    def test_right(self, upload: Uploading) -> None:
        content = data(2 * MIB + 3)
        answer = upload.put("a.txt", content, **digest(content))
        assert answer.json()["sha256"] == hashlib.sha256(content).hexdigest()

    def test_among_others(self, upload: Uploading) -> None:
        value = "sha-512=:AAAA:, " + digest(b"abc")["content-digest"]
        assert upload.put("a.txt", b"abc", content_digest=value).status_code == 200

    @pytest.mark.parametrize("size", [3, MIB, 2 * MIB + 3])
    def test_wrong(self, upload: Uploading, size: int) -> None:
        answer = upload.put("a.txt", data(size), **digest(b"something else"))
        assert error(answer, 400, "digest_mismatch")["param"] == "Content-Digest"
        assert upload.get()["files"] == []
        assert upload.stored() == []

    def test_wrong_of_a_later_message(self, upload: Uploading) -> None:
        content = data(3 * MIB)
        upload.put("a.txt", content[:MIB], **sent_range(0, MIB, 3 * MIB)).raise_for_status()
        headers = {**sent_range(MIB, 3 * MIB, 3 * MIB), **digest(b"something else")}
        error(upload.put("a.txt", content[MIB:], **headers), 400, "digest_mismatch")
        assert upload.offset("a.txt") == MIB
        headers.update(digest(content[MIB:]))
        assert upload.put("a.txt", content[MIB:], **headers).json()["complete"]
        assert upload.stored() == [content]

    @pytest.mark.parametrize(
        "value", ["", "abc", "sha-256=abc", "sha-256=:abc:", "sha-256=:YWJj:", "sha-512=:YWJj:"]
    )
    def test_malformed(self, upload: Uploading, value: str) -> None:
        answer = upload.put("a.txt", b"abc", content_digest=value)
        assert error(answer, 400, "invalid_request")["param"] == "Content-Digest"


class TestWrapped:
    @pytest.mark.parametrize(
        "headers",
        [{"content-encoding": "gzip"}, {"content-type": "multipart/form-data; boundary=x"}],
    )
    @pytest.mark.parametrize("path", ["a.txt", "a.txt/parts/1"])
    def test_refused(self, upload: Uploading, path: str, headers: dict[str, str]) -> None:
        error(upload.put(path, b"abc", **headers), 415, "unsupported_media_type")


class TestContentRange:
    @pytest.mark.parametrize(
        "value",
        ["bytes 0-2/*", "bytes */3", "bytes 2-1/3", "bytes 0-3/3", "items 0-2/3", "bytes 0-2", "x"],
    )
    def test_malformed(self, upload: Uploading, value: str) -> None:
        answer = upload.put("a.txt", b"abc", content_range=value)
        assert error(answer, 400, "invalid_request")["param"] == "Content-Range"

    def test_other_length_than_the_body(self, upload: Uploading) -> None:
        error(upload.put("a.txt", b"abc", **sent_range(0, 4, 4)), 400, "invalid_request")

    @pytest.mark.parametrize("sent", [MIB - 1, MIB + 1])
    def test_other_length_than_a_streamed_body(self, upload: Uploading, sent: int) -> None:
        answer = upload.put("a.txt", iter([data(sent)]), **sent_range(0, MIB, MIB))
        error(answer, 400, "invalid_request")
        assert upload.offset("a.txt") == 0

    def test_on_from_a_part_before_the_end(self, upload: Uploading) -> None:
        content = data(4 * MIB)
        upload.put("a.txt", content[: 3 * MIB], **sent_range(0, 3 * MIB, 4 * MIB))
        upload.put("a.txt", content[MIB:], **sent_range(MIB, 4 * MIB, 4 * MIB)).raise_for_status()
        assert upload.file("a.txt")["complete"]
        assert upload.stored() == [content]

    @pytest.mark.parametrize("start", [1, MIB - 1, 2 * MIB, 3 * MIB])
    def test_wrong_start(self, upload: Uploading, start: int) -> None:
        upload.put("a.txt", data(MIB), **sent_range(0, MIB, 4 * MIB)).raise_for_status()
        answer = upload.put("a.txt", data(4 * MIB - start), **sent_range(start, 4 * MIB, 4 * MIB))
        assert f"offset {MIB}" in error(answer, 409, "offset_mismatch")["message"]

    def test_end_within_a_part(self, upload: Uploading) -> None:
        answer = upload.put("a.txt", data(5), **sent_range(0, 5, 9))
        assert "multiple of part_size" in error(answer, 400, "invalid_request")["message"]

    def test_other_total_than_before(self, upload: Uploading) -> None:
        upload.put("a.txt", data(MIB), **sent_range(0, MIB, 2 * MIB)).raise_for_status()
        answer = upload.put("a.txt", data(MIB), **sent_range(MIB, 2 * MIB, 3 * MIB))
        error(answer, 409, "size_mismatch")


@pytest.mark.case(19)
class TestLimits:
    LIMIT = 8 * MIB

    def test_announced(self, upload: Uploading) -> None:
        with upload.beginning("a.txt", self.LIMIT + 1, b"") as raw:
            assert raw.status() == 413
        assert upload.get()["files"] == []

    def test_while_reading(self, upload: Uploading) -> None:
        sent = 0

        def chunks():
            nonlocal sent
            while sent < 10 * self.LIMIT:
                sent += MIB
                yield bytes(MIB)

        error(upload.put("a.txt", chunks()), 413, "payload_too_large")
        assert upload.offset("a.txt") <= self.LIMIT

    def test_together(self, upload: Uploading) -> None:
        upload.put("a.txt", bytes(5 * MIB)).raise_for_status()
        error(upload.put("b.txt", bytes(4 * MIB)), 413, "payload_too_large")
        upload.put("b.txt", bytes(3 * MIB)).raise_for_status()
        error(upload.put("c.txt", b"1"), 413, "payload_too_large")
        upload.put("a.txt", bytes(2 * MIB)).raise_for_status()
        upload.put("c.txt", b"1").raise_for_status()

    def test_number_of_files(self, upload: Uploading) -> None:
        for number in range(8):
            upload.put(f"{number}.txt", b"x").raise_for_status()
        error(upload.put("8.txt", b"x"), 413, "payload_too_large")
        upload.put("7.txt", b"y").raise_for_status()

    def test_larger_than_other_bodies_may_be(self, upload: Uploading) -> None:
        """The size limit of JSON bodies applies everywhere except to file uploads."""
        answer = upload.client.patch(
            f"/v1/model-artifacts/{upload.artifact_id}", content=bytes(65 * MIB)
        )
        error(answer, 413, "payload_too_large")


@pytest.mark.case(8)
class TestPaths:
    def test_nul_is_no_path_at_all(self, upload: Uploading) -> None:
        assert upload.put("a%00.json", b"{}").status_code == 404
        assert upload.get()["files"] == []

    @pytest.mark.parametrize(
        "path",
        [
            "%2e%2e/config.json",
            "a/%2e%2e/%2e%2e/config.json",
            "..%2f..%2fetc/passwd",
            "%2fetc/passwd",
            "a//b.json",
            "./config.json",
            "a%5c..%5cb.json",
            "C:%5cconfig.json",
            "con.json",
            ".hidden",
            "caf%c3%a9.json",
            "config%e2%80%ae.json",
            "con%66ig.json%20",
            "a/b/c/d/e.json",
            "x" * 300,
            "%ff%fe",
        ],
    )
    @pytest.mark.parametrize("suffix", ["", "/parts/1"])
    def test_refused(self, upload: Uploading, path: str, suffix: str) -> None:
        # Send the path unchanged: a client library would normalize it.
        with upload.beginning(path + suffix, 2, b"{}") as raw:
            answer = raw.answer()
        assert b" 400 " in answer.split(b"\r\n")[0]
        assert b'"param":"path"' in answer
        assert upload.get()["files"] == []
        assert upload.stored() == []

    def test_nothing_at_all(self, upload: Uploading) -> None:
        assert upload.put("", b"{}").status_code in {400, 404}


class TestHead:
    def test_headers(self, upload: Uploading) -> None:
        upload.put("a.txt", data(MIB), **sent_range(0, MIB, 2 * MIB)).raise_for_status()
        headers = upload.head("a.txt").headers
        assert headers["upload-offset"] == str(MIB)
        assert headers["upload-length"] == str(2 * MIB)
        assert headers["upload-complete"] == "?0"
        upload.put("a.txt", b"abc").raise_for_status()
        assert upload.head("a.txt").headers["upload-complete"] == "?1"

    def test_unknown(self, upload: Uploading) -> None:
        assert upload.head("a.txt").status_code == 404


@pytest.mark.fault("d3")
class TestBrokenOff:
    def test_full_parts_stay(self, upload: Uploading) -> None:
        content = data(4 * MIB + 7)
        with upload.beginning("a.txt", len(content), content[: 2 * MIB + 100]):
            pass
        assert _settled_offset(upload) == 2 * MIB
        head = upload.head("a.txt").headers
        assert (head["upload-length"], head["upload-complete"]) == (str(len(content)), "?0")
        error(upload.complete(), 409, "upload_incomplete")
        rest = content[2 * MIB :]
        headers = sent_range(2 * MIB, len(content), len(content))
        assert upload.put("a.txt", rest, **headers).json()["complete"]
        assert upload.stored() == [content]

    def test_of_untold_length_is_incomplete(self, upload: Uploading) -> None:
        with Raw.connect(upload.server) as raw:
            raw.begin(
                f"{upload.url}/files/a.txt",
                upload.client.headers["authorization"],
                {"transfer-encoding": "chunked"},
            )
            raw.send(b"%x\r\n%s\r\n" % (MIB, bytes(MIB)))
            assert _settled_offset(upload) == MIB
        assert not upload.file("a.txt")["complete"]
        error(upload.complete(), 409, "upload_incomplete")
        upload.put("a.txt", b"", **{"content-length": "0"}).raise_for_status()
        assert upload.file("a.txt")["complete"]

    def test_a_new_connection_takes_over(self, upload: Uploading) -> None:
        """A new connection takes over the upload. The server may not know yet that the first
        connection is dead.
        """
        content = data(3 * MIB)
        with upload.beginning("a.txt", len(content), content[: MIB + 5]) as raw:
            assert _settled_offset(upload) == MIB
            headers = sent_range(MIB, len(content), len(content))
            assert upload.put("a.txt", content[MIB:], **headers).json()["complete"]
            assert b"transfer_taken_over" in raw.answer()
        assert upload.stored() == [content]

    def test_nobody_takes_over_anothers(self, upload: Uploading) -> None:
        with (
            upload.server.account("thief") as thief,
            upload.beginning("a.txt", 3, b"ab") as raw,
        ):
            assert eventually(lambda: bool(upload.stored()))
            stolen = thief.put(f"{upload.url}/files/a.txt", content=b"xyz")
            error(stolen, 404, "artifact_not_found")
            raw.send(b"c")
            assert raw.status() == 200
        assert upload.stored() == [b"abc"]


def _settled_offset(upload: Uploading) -> int:
    """Returns the offset once the server has processed the sent bytes."""
    before, deadline = -1, time.monotonic() + 20
    while time.monotonic() < deadline:
        head = upload.head("a.txt")
        now = int(head.headers.get("upload-offset", 0))
        if now == before and now:
            break
        before = now
        time.sleep(0.3)
    return before
