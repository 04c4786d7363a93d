"""A server that cannot bind its address reports the address and the process that holds it."""

import os
import socket
from pathlib import Path

from tests.cli.support import Cli


def test_address_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = Cli("http://127.0.0.1:9").popen(
            "serve", "--port", str(port), "--data-dir", str(tmp_path / "data")
        )
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{port}: it is in use" in errors
    assert f"by process {os.getpid()}" in errors and "Traceback" not in errors
