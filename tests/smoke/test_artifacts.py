import httpx

from tests.agents.conftest import MODELS
from tests.support.deploying import push


def test_push_read_and_delete(smoke: httpx.Client) -> None:
    folder = MODELS / "tiny-fill-mask"
    artifact = push(smoke, folder)
    path = f"/v1/model-artifacts/{artifact['id']}"
    assert artifact["pipeline"] == "fill-mask"
    sizes = [file.stat().st_size for file in folder.iterdir()]
    assert smoke.get(path).raise_for_status().json()["size_bytes"] == sum(sizes)
    smoke.delete(path).raise_for_status()
    assert smoke.get(path).status_code == 404
