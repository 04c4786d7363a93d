"""Paths in the request log contain no names that clients chose."""

import pytest

from stoker.platform.web.http import logged_path

FILES = "/v1/model-artifacts/art_1/uploads/upl_1/files"


@pytest.mark.parametrize(
    ("path", "parameters", "logged"),
    [
        (f"{FILES}/a/b.json", {"path": "a/b.json"}, f"{FILES}/{{path}}"),
        (f"{FILES}/b.bin/parts/1", {"path": "b.bin", "number": 1}, f"{FILES}/{{path}}/parts/1"),
        ("/v1/models/my-model", {"model": "my-model"}, "/v1/models/{model}"),
        ("/v1/deployments/dep_1", {"deployment_id": "dep_1"}, "/v1/deployments/dep_1"),
        ("/nothing", {}, "/nothing"),
    ],
)
def test_path(path: str, parameters: dict[str, object], logged: str) -> None:
    assert logged_path({"path": path, "path_params": parameters}) == logged
