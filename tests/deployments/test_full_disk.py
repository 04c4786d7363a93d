"""A loaded replica serves calls even if a file cannot be written."""

from typing import Any

import pytest

from tests.artifacts.support import Uploading
from tests.deployments.support import bert, call, deploy
from tests.runtime.local.test_measurements import in_the_way
from tests.support.server import Server


@pytest.mark.one_machine
@pytest.mark.fault("c6")
def test_what_was_measured_cannot_be_written(server: Server) -> None:
    with server.account() as client:
        session = Uploading.open(server, client)
        session.put_folder(bert())
        session.complete().raise_for_status()
        in_the_way(server.data_dir / "cache", session.upload_id)
        made: dict[str, Any] = deploy(client, session.artifact_id, "unwritten")
        assert call(client, "unwritten", wait=60).status_code == 200
        shown = client.get(f"/v1/deployments/{made['id']}").json()
    assert shown["status"] == "ready"
