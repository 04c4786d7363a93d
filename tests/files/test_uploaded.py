"""Files that clients upload, with OpenAI's SDK and with plain requests."""

import hashlib
import json
import select
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.deployments.support import key_for, upload
from tests.files.conftest import FILE_LIMIT, MIB, stored
from tests.support import raw
from tests.support.server import Server

DAY = 24 * 3600
LINES = b'{"custom_id": "1"}\n{"custom_id": "2"}\n'
BOUNDARY = "edge"


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def post(client: httpx.Client, content: bytes = LINES, **fields: str) -> httpx.Response:
    name = fields.pop("filename", "lines.jsonl")
    data = {"purpose": "user_data", **fields}
    return client.post("/v1/files", data=data, files={"file": (name, content)})


def field(name: str, value: str) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
    return f"{head}{value}\r\n".encode()


def file_field(content: bytes, disposition: str = 'name="file"; filename="a.jsonl"') -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def send(client: httpx.Client, body: bytes, path: str = "/v1/files", **headers: str) -> Any:
    kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return client.post(path, content=body, headers=kind | headers)


def names_its_field(response: httpx.Response, param: str | None) -> None:
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param, response.text


class TestSdk:
    def test_upload_list_read_and_delete(self, sdk: openai.OpenAI, tmp_path: Path):
        path = tmp_path / "requests.jsonl"
        path.write_bytes(LINES)
        before = int(time.time())
        with path.open("rb") as opened:
            file = sdk.files.create(file=opened, purpose="batch")
        assert (file.filename, file.bytes, file.purpose) == ("requests.jsonl", len(LINES), "batch")
        assert (file.object, file.status) == ("file", "processed")
        assert file.expires_at is not None
        assert before + 30 * DAY <= file.expires_at <= before + 30 * DAY + 60
        assert sdk.files.retrieve(file.id) == file
        assert sdk.files.content(file.id).read() == LINES
        assert sdk.files.list().data == [file]
        assert sdk.files.delete(file.id).deleted
        assert sdk.files.list().data == []
        with pytest.raises(openai.NotFoundError):
            sdk.files.retrieve(file.id)

    def test_user_data_does_not_expire(self, sdk: openai.OpenAI):
        file = sdk.files.create(file=("notes.txt", b"x"), purpose="user_data")
        assert file.expires_at is None

    def test_expiry_is_chosen(self, sdk: openai.OpenAI):
        for purpose in ("batch", "user_data"):
            file = sdk.files.create(
                file=("a", b"x"),
                purpose=purpose,
                expires_after={"anchor": "created_at", "seconds": 3600},
            )
            assert file.expires_at == pytest.approx(file.created_at + 3600, abs=1)

    def test_list_is_filtered_and_ordered(self, sdk: openai.OpenAI):
        ids = [
            sdk.files.create(file=(f"{n}", b"x"), purpose="batch" if n % 2 else "user_data").id
            for n in range(4)
        ]
        listed = sdk.files.list(purpose="batch", order="asc", limit=10_000)
        assert [file.id for file in listed.data] == [ids[1], ids[3]]
        assert [file.id for file in sdk.files.list(after=ids[2]).data] == [ids[1], ids[0]]
        # The SDK fetches further pages itself.
        assert [file.id for file in sdk.files.list(limit=1)] == ids[::-1]

    def test_wait_for_processing(self, sdk: openai.OpenAI):
        file = sdk.files.create(file=("a", b"x"), purpose="batch")
        assert sdk.files.wait_for_processing(file.id).id == file.id

    def test_large_file_in_chunks(self, sdk: openai.OpenAI, tmp_path: Path):
        content = bytes(range(256)) * 4096 * 9
        path = tmp_path / "large.bin"
        path.write_bytes(content)
        done = sdk.uploads.upload_file_chunked(
            file=path,
            mime_type="application/octet-stream",
            purpose="user_data",
            part_size=2 * MIB,
            md5=hashlib.md5(content, usedforsecurity=False).hexdigest(),
        )
        assert (done.status, done.bytes) == ("completed", len(content))
        assert done.file is not None
        assert (done.file.filename, done.file.bytes) == ("large.bin", len(content))
        assert sdk.files.content(done.file.id).read() == content


class TestContent:
    def test_is_a_download(self, owner: httpx.Client):
        page = b"<script>alert(1)</script>"
        files = {"file": ("page.html", page, "text/html")}
        file = owner.post("/v1/files", data={"purpose": "user_data"}, files=files).json()
        response = owner.get(f"/v1/files/{file['id']}/content")
        assert response.content == page
        assert file["content_type"] == "text/html"
        assert response.headers["content-type"] == "application/octet-stream"
        assert response.headers["content-disposition"] == 'attachment; filename="page.html"'
        assert response.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert response.headers["x-content-type-options"] == "nosniff"

    def test_ranges(self, owner: httpx.Client):
        path = f"/v1/files/{post(owner).json()['id']}/content"
        response = owner.get(path, headers={"range": "bytes=2-10"})
        assert (response.status_code, response.content) == (206, LINES[2:11])

    @pytest.mark.parametrize(
        ("name", "kept"),
        [
            ("../../etc/passwd", "passwd"),
            ("C:\\temp\\a.txt", "a.txt"),
            ("a\u00e9\u2713.txt", "a\u00e9\u2713.txt"),
            ('a"b;c.txt', "a%22b;c.txt"),
        ],
    )
    def test_name_is_never_a_path(self, small: Server, owner: Any, name: str, kept: str):
        file = post(owner, filename=name).raise_for_status().json()
        assert file["filename"] == kept
        assert f"files/{file['id']}" in stored(small)
        shown = owner.get(f"/v1/files/{file['id']}/content").headers["content-disposition"]
        assert shown.startswith("attachment; filename") and "\n" not in shown

    @pytest.mark.parametrize("name", ["..", "a/", "a\x01b", "x" * 256])
    def test_unusable_name(self, owner: httpx.Client, name: str):
        body = field("purpose", "batch") + file_field(b"x", f'name="file"; filename="{name}"')
        names_its_field(send(owner, body + END), "file")


class TestRefused:
    @pytest.mark.parametrize(
        "purpose", ["vision", "evals", "assistants", "fine-tune", "", "x" * 99]
    )
    def test_other_purposes(self, owner: httpx.Client, purpose: str):
        response = post(owner, purpose=purpose)
        names_its_field(response, "purpose")
        assert "'batch'" in response.text and "'user_data'" in response.text

    @pytest.mark.parametrize("seconds", ["3599", "2592001", "-1", "1e4", "", "٣٦٠٠", "9" * 5000])
    def test_expiry(self, owner: httpx.Client, seconds: str):
        fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}
        response = post(owner, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "expires_after[seconds]"

    def test_expiry_without_an_anchor(self, owner: httpx.Client):
        response = post(owner, **{"expires_after[seconds]": "3600"})
        names_its_field(response, "expires_after[anchor]")

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            (field("purpose", "batch") + END, "file"),
            (field("purpose", "batch") + field("file", "text") + END, "file"),
            (file_field(b"x") + END, "purpose"),
            (file_field(b"") + field("purpose", "batch") + END, "file"),
            (2 * file_field(b"x") + field("purpose", "batch") + END, "file"),
            (file_field(b"x") + 2 * field("purpose", "batch") + END, "purpose"),
            (file_field(b"x") + field("purpose", "b" * 5000) + END, "purpose"),
            (file_field(b"x") + field("purpose", "batch"), None),
            (b"no form", None),
            (b"", None),
            (40 * field("other", "x") + file_field(b"x") + END, None),
            (
                field("purpose", "batch")
                + file_field(b"eA==").replace(
                    b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n", 1
                )
                + END,
                "file",
            ),
            (
                field("purpose", "batch")
                + file_field(b"x").replace(b"\r\n\r\n", b"\r\nX: " + b"y" * 5000 + b"\r\n\r\n", 1)
                + END,
                None,
            ),
        ],
    )
    def test_malformed_form(self, small: Server, owner: Any, body: bytes, param: str | None):
        before = stored(small)
        names_its_field(send(owner, body), param)
        assert stored(small) == before

    def test_other_content_types(self, owner: httpx.Client):
        assert code(owner.post("/v1/files", json={})) == (415, "unsupported_media_type")
        kind = {"content-type": "multipart/form-data"}
        response = owner.post("/v1/files", content=b"x", headers=kind)
        names_its_field(response, "Content-Type")

    def test_unknown_fields_are_ignored(self, owner: httpx.Client):
        assert post(owner, new="x").status_code == 200

    def test_without_a_key(self, small: Server):
        with small.client() as anonymous:
            assert code(post(anonymous)) == (401, "invalid_api_key")


class TestLimits:
    def test_announced_size(self, small: Server, owner: httpx.Client):
        """A length of 2 GB is refused before a byte of it was sent."""
        key = owner.headers["authorization"]
        with raw.connect(small) as connection:
            connection.sendall(
                f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n"
                f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
                "Content-Length: 2000000000\r\n\r\n".encode()
            )
            answer = raw.read_one(connection)
        assert (answer.status, answer.error["code"]) == (413, "payload_too_large")
        assert str(FILE_LIMIT) in answer.error["message"]

    def test_endless_body(self, small: Server, owner: httpx.Client):
        before = stored(small)
        key = owner.headers["authorization"]
        chunk = b"%x\r\n" % MIB + bytes(MIB) + b"\r\n"
        head = file_field(b"")[:-2]
        with raw.connect(small) as connection:
            connection.sendall(
                f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n"
                f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
                "Transfer-Encoding: chunked\r\n\r\n".encode()
                + b"%x\r\n" % len(head)
                + head
                + b"\r\n"
            )
            sent = 0
            while not select.select([connection], [], [], 0)[0]:
                connection.sendall(chunk)
                sent += MIB
                assert sent < 2 * 10**9
            answer = raw.read_one(connection)
        assert (answer.status, answer.error["code"]) == (413, "payload_too_large")
        assert sent < 8 * FILE_LIMIT
        assert stored(small) == before

    def test_exact_limit(self, owner: httpx.Client):
        assert post(owner, bytes(FILE_LIMIT)).json()["bytes"] == FILE_LIMIT
        assert code(post(owner, bytes(FILE_LIMIT + 1))) == (413, "payload_too_large")

    def test_quota_of_storage(self, small: Server, owner: Any):
        before = stored(small)
        with small.client(small.operator_key) as operator:
            path = f"/v1/accounts/{owner.account_id}"
            operator.patch(path, json={"quotas": {"storage_bytes": 1000}}).raise_for_status()
        assert post(owner, bytes(900)).status_code == 200
        response = post(owner, bytes(101))
        assert code(response) == (413, "quota_exceeded")
        upload = {"filename": "a", "purpose": "batch", "bytes": 101, "mime_type": "text/plain"}
        assert code(owner.post("/v1/uploads", json=upload)) == (413, "quota_exceeded")
        assert post(owner, bytes(100)).status_code == 200
        assert len(stored(small) - before) == 2

    def test_quota_of_files(self, small: Server, owner: Any):
        with small.client(small.operator_key) as operator:
            path = f"/v1/accounts/{owner.account_id}"
            operator.patch(path, json={"quotas": {"files": 1}}).raise_for_status()
        before = stored(small)
        assert post(owner).status_code == 200
        assert code(post(owner)) == (429, "quota_exceeded")
        assert len(stored(small) - before) == 1


class TestInterrupted:
    def test_client_that_disconnects(self, small: Server, owner: httpx.Client):
        before = stored(small)
        key = owner.headers["authorization"]
        with raw.connect(small) as connection:
            connection.sendall(
                f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n"
                f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
                f"Content-Length: {8 * MIB}\r\n\r\n".encode()
                + file_field(bytes(3 * MIB))
            )
            deadline = time.monotonic() + 30
            while stored(small) == before:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        deadline = time.monotonic() + 30
        while stored(small) != before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert owner.get("/v1/files").json()["data"] == []

    def test_deleted_while_it_is_downloaded(self, owner: httpx.Client):
        content = bytes(range(256)) * 4096 * 12
        identifier = post(owner, content).json()["id"]
        with owner.stream("GET", f"/v1/files/{identifier}/content") as response:
            chunks = response.iter_raw()
            first = next(chunks)
            assert owner.delete(f"/v1/files/{identifier}").status_code == 200
            assert first + b"".join(chunks) == content
        assert owner.get(f"/v1/files/{identifier}/content").status_code == 404


class TestKeys:
    def test_files_of_other_accounts(self, small: Server, owner: httpx.Client):
        identifier = post(owner).json()["id"]
        with small.account("other") as stranger:
            for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
                response = stranger.request(method, f"/v1/files/{identifier}{path}")
                assert code(response) == (404, "file_not_found")
            assert stranger.get("/v1/files").json()["data"] == []

    def test_key_of_a_deployment_sees_its_own_uploads(self, small: Server, owner: Any):
        model = {"model": "m", "artifact_id": upload(small, owner)}
        deployment = owner.post("/v1/deployments", json=model).raise_for_status().json()["id"]
        keys = [key_for(owner, deployment) for _ in range(2)]
        mine = post(owner).json()["id"]
        with small.client(keys[0]) as first, small.client(keys[1]) as second:
            theirs = post(first).json()["id"]
            assert [file["id"] for file in first.get("/v1/files").json()["data"]] == [theirs]
            assert second.get("/v1/files").json()["data"] == []
            for hidden in (second.get(f"/v1/files/{theirs}"), first.get(f"/v1/files/{mine}")):
                assert code(hidden) == (404, "file_not_found")
            asked = {"filename": "a", "purpose": "batch", "bytes": 1, "mime_type": "text/plain"}
            begun = first.post("/v1/uploads", json=asked).json()["id"]
            assert code(second.get(f"/v1/uploads/{begun}")) == (404, "upload_not_found")
            assert owner.get(f"/v1/uploads/{begun}").status_code == 200
        assert {file["id"] for file in owner.get("/v1/files").json()["data"]} == {mine, theirs}


class TestIdempotency:
    def test_same_file_again(self, small: Server, owner: httpx.Client):
        before = stored(small)
        headers = {"idempotency-key": "once"}
        parts = {"data": {"purpose": "batch"}, "files": {"file": ("a", LINES)}}
        first = owner.post("/v1/files", headers=headers, **parts)
        again = owner.post("/v1/files", headers=headers, **parts)
        assert again.json() == first.json()
        assert again.headers["idempotency-replayed"] == "true"
        other = {"data": {"purpose": "batch"}, "files": {"file": ("a", LINES + b"\n")}}
        refused = owner.post("/v1/files", headers=headers, **other)
        assert code(refused) == (409, "idempotency_mismatch")
        assert len(stored(small) - before) == 1


def test_bytes_arrive_unchanged(owner: httpx.Client):
    """Content that resembles the form's own boundaries."""
    content = f"\r\n--{BOUNDARY}\r\n--{BOUNDARY[:-1]}x--\r\n".encode() * 50_000
    content = content.replace(
        f"\r\n--{BOUNDARY}\r\n".encode(), f"\r\n--{BOUNDARY[:-1]}\r\n".encode()
    )
    response = send(owner, file_field(content) + field("purpose", "user_data") + END)
    identifier = response.raise_for_status().json()["id"]
    assert owner.get(f"/v1/files/{identifier}/content").content == content


def test_account_is_deleted_with_its_files(small: Server):
    before = stored(small)
    with small.account("leaving") as client, small.client(small.operator_key) as operator:
        post(client).raise_for_status()
        asked = {"filename": "a", "purpose": "batch", "bytes": 2, "mime_type": "text/plain"}
        begun = client.post("/v1/uploads", json=asked).json()["id"]
        client.post(f"/v1/uploads/{begun}/parts", files={"data": b"x"}).raise_for_status()
        assert len(stored(small) - before) == 2
        operator.delete(f"/v1/accounts/{client.account_id}").raise_for_status()
    assert stored(small) == before


def test_limit_of_pages(owner: httpx.Client):
    response = owner.get("/v1/files", params={"limit": 10_001})
    names_its_field(response, "limit")
    assert json.loads(response.text)["error"]["message"]
