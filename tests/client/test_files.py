"""Files that the client and the command line upload to a real server."""

import asyncio
from pathlib import Path

import pytest

from stoker.client import ApiError, AsyncStoker, PushState, Stoker, WrongUseError
from stoker.client.file_upload import PART_BYTES
from tests.cli.support import Cli
from tests.client.conftest import new_key
from tests.support.server import Server

LINES = b'{"custom_id": "1"}\n'
LARGE = bytes(range(256)) * 4096 * 17


@pytest.fixture
def key(gateway: Server) -> str:
    return new_key(gateway)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(LINES)
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.bin"
    path.write_bytes(LARGE)
    return path


class TestLibrary:
    def test_small_file(self, gateway: Server, key: str, path: Path, tmp_path: Path) -> None:
        with Stoker(base_url=gateway.base_url, api_key=key) as stoker:
            file = stoker.files.create(path, purpose="batch", expires_after_s=7200)
            assert (file.filename, file.bytes, file.purpose) == ("lines.jsonl", len(LINES), "batch")
            assert file.expires_at == pytest.approx(file.created_at + 7200, abs=1)
            assert [one.id for one in stoker.files.list(purpose="batch")] == [file.id]
            assert list(stoker.files.list(purpose="user_data")) == []
            saved = stoker.files.download(file.id, tmp_path / "saved")
            assert saved.read_bytes() == LINES
            stoker.files.delete(file.id)
            with pytest.raises(ApiError, match="File not found"):
                stoker.files.get(file.id)

    def test_large_file_is_sent_in_parts(
        self, gateway: Server, key: str, large: Path, tmp_path: Path
    ) -> None:
        states: list[PushState] = []

        async def work() -> None:
            async with AsyncStoker(base_url=gateway.base_url, api_key=key) as stoker:
                file = await stoker.files.create(
                    large, purpose="user_data", on_progress=states.append
                )
                assert (file.bytes, file.expires_at) == (len(LARGE), None)
                saved = await stoker.files.download(file.id, tmp_path / "saved")
                assert saved.read_bytes() == LARGE

        asyncio.run(work())
        assert [state.sent_bytes for state in states] == [PART_BYTES, len(LARGE)]

    def test_interrupted_upload_is_continued(
        self, gateway: Server, key: str, large: Path, tmp_path: Path
    ) -> None:
        def stop(_state: PushState) -> None:
            raise KeyboardInterrupt

        states: list[PushState] = []
        with Stoker(base_url=gateway.base_url, api_key=key) as stoker:
            with pytest.raises(KeyboardInterrupt):
                stoker.files.create(large, purpose="user_data", on_progress=stop)
            assert list(stoker.files.list()) == []
            assert stoker.quotas.get().quotas["upload_sessions"].used == 1
            file = stoker.files.create(large, purpose="user_data", on_progress=states.append)
            # The first state has the note that the upload is continued.
            assert [state.sent_bytes for state in states] == [0, PART_BYTES, len(LARGE)]
            assert stoker.files.download(file.id, tmp_path / "saved").read_bytes() == LARGE
            assert stoker.quotas.get().quotas["upload_sessions"].used == 0

    def test_missing_and_empty_files(self, gateway: Server, key: str, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        with Stoker(base_url=gateway.base_url, api_key=key) as stoker:
            for name in ("missing", "empty"):
                with pytest.raises(WrongUseError, match=name):
                    stoker.files.create(tmp_path / name, purpose="batch")


class TestCommand:
    def test_push_list_show_download_delete(
        self, gateway: Server, key: str, path: Path, large: Path, tmp_path: Path
    ) -> None:
        cli = Cli(gateway.base_url, key)
        small = cli.json("files", "push", str(path), "--purpose", "batch")
        assert (small["filename"], small["purpose"]) == ("lines.jsonl", "batch")
        done = cli.run("files", "push", str(large))
        assert done.returncode == 0, done.stderr
        assert "large.bin" in done.stdout and "never" in done.stdout
        assert [one["id"] for one in cli.json("files", "list", "--purpose", "batch")] == [
            small["id"]
        ]
        assert cli.json("files", "show", small["id"]) == small
        target = tmp_path / "saved"
        cli.json("files", "download", small["id"], "-o", str(target))
        assert target.read_bytes() == LINES
        cli.json("files", "delete", small["id"], "--yes")
        assert [one["filename"] for one in cli.json("files", "list")] == ["large.bin"]

    def test_wrong_use(self, gateway: Server, key: str, path: Path) -> None:
        cli = Cli(gateway.base_url, key)
        for arguments in (
            ("files", "push", "missing.jsonl"),
            ("files", "push", str(path), "--purpose", "vision"),
            ("files", "push", str(path), "--expires-after-h", "0.5"),
        ):
            assert cli.run(*arguments).returncode == 2, arguments
        assert cli.json("files", "list") == []
