"""The diagnosis names the wall that blocks an attempt, and what the wall blocks."""

import os
import socket
from pathlib import Path

import pytest

from stoker.sandbox.diagnosis import PUT_UP, smallest_part
from stoker.sandbox.openings import Opening, Wall
from tests.sandbox.support import Confinement, no_walls

pytestmark = no_walls


def shared(confinement: Confinement) -> str:
    """Creates a file that every user may read and write."""
    folder = confinement.folder / "of others" / "inner"
    folder.mkdir(parents=True)
    for name in ("secret", "other"):
        path = folder / name
        path.write_text("content")
        path.chmod(0o666)
    return str(folder / "secret")


class TestOneWall:
    def test_a_file_that_is_read(self, confinement: Confinement) -> None:
        path = shared(confinement)
        assert confinement.openings("read", path) == [[Wall.FILES, path, False]]

    def test_a_file_that_is_written(self, confinement: Confinement) -> None:
        path = shared(confinement)
        assert confinement.openings("write", path) == [[Wall.FILES, path, True]]

    def test_the_servers_files_are_never_opened(self, confinement: Confinement) -> None:
        """Only leaving out the wall helps, which a diagnosis reports and no path."""
        path = confinement.kept_back / "server-secret"
        path.write_text("secret")
        path.chmod(0o644)
        (confinement.folder / "link").symlink_to(confinement.folder)
        assert confinement.openings("read", str(path)) == [[Wall.FILES, "", False]]

    def test_a_system_call(self, confinement: Confinement) -> None:
        assert confinement.openings("call") == [[Wall.SYSTEM_CALLS, "keyctl", False]]

    def test_a_connection(self, confinement: Confinement) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert confinement.openings("connect", port) == [[Wall.NETWORK, "", False]]

    def test_a_namespace(self, confinement: Confinement) -> None:
        """The smaller of two walls is named."""
        inode = Path("/proc/self/ns/net").stat().st_ino
        openings = confinement.openings("own_namespace", inode)
        assert openings == [[Wall.NAMESPACES, "", False]]

    def test_a_big_file(self, confinement: Confinement) -> None:
        size = 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert confinement.openings("big_file", size) == [[Wall.LIMITS, "", False]]

    def test_a_memory_file_of_the_machines_size_is_allowed(self, confinement: Confinement) -> None:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert confinement.ask("big_file", size)["problem"] == ""
        assert confinement.ask("big_file", size, gpu=False, once=True)["text"]

    def test_signals(self, confinement: Confinement) -> None:
        """Root's own user could not signal others without capabilities either."""
        if confinement.kind == "plain" and os.geteuid() == 0:
            pytest.skip("root's processes cannot be signalled by the user")
        walls = [wall for wall, *_ in confinement.openings("signal", os.getpid())]
        more = [Wall.CAPABILITIES] if confinement.kind == "user" else []
        assert walls in ([*more, Wall.SIGNALS], [Wall.USER, Wall.SIGNALS])

    def test_the_user(self, confinement: Confinement) -> None:
        if confinement.kind != "user":
            pytest.skip("the process keeps its user")
        assert confinement.openings("is_root") == [[Wall.USER, "", False]]


class TestSeveral:
    def test_a_file_and_a_call(self, confinement: Confinement) -> None:
        path = shared(confinement)
        openings = confinement.openings("read_and_call", path)
        assert openings == [[Wall.SYSTEM_CALLS, "keyctl", False], [Wall.FILES, path, False]]

    def test_each_wall_alone(self, confinement: Confinement) -> None:
        diagnosis = confinement.ask("call", alone=True)
        assert set(diagnosis["alone"]) == {*PUT_UP}
        assert [wall for wall, why in diagnosis["alone"].items() if why] == [Wall.SYSTEM_CALLS]

    def test_a_small_part_is_found_with_few_attempts(self) -> None:
        calls = [Opening(Wall.SYSTEM_CALLS, str(number)) for number in range(200)]
        needed, attempts = {calls[3], calls[150], calls[151]}, list[int]()

        def works(part: list[Opening]) -> bool:
            attempts.append(len(part))
            return needed <= {*part}

        assert {*smallest_part(calls, works)} == needed
        assert len(attempts) < 60


class TestOtherCauses:
    def test_success(self, confinement: Confinement) -> None:
        diagnosis = confinement.ask("succeed", alone=True)
        assert (diagnosis["problem"], diagnosis["openings"]) == ("", [])
        assert {*diagnosis["alone"].values()} == {""}

    @pytest.mark.parametrize(
        ("attempt", "problem"),
        [
            ("fail", "broken"),
            ("crash", "the process ended with status -6"),
            ("hang", "no answer within 1 s"),
        ],
    )
    def test_the_walls_are_not_the_cause(
        self, confinement: Confinement, attempt: str, problem: str
    ) -> None:
        diagnosis = confinement.ask(attempt, timeout_s=1)
        assert (diagnosis["problem"], diagnosis["bare_problem"]) == (problem, problem)
        assert diagnosis["openings"] == []
