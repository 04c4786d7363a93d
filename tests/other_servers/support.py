"""Calls of the endpoints of Text Embeddings Inference and vLLM."""

from typing import Any

import httpx
import numpy as np

from stoker.platform.web.error_formats import TEI_PATHS
from tests.support.errors import error_of


def ask(client: httpx.Client, path: str, model: str, **body: Any) -> Any:
    """Returns the answer of a successful call."""
    response = client.post(path, json={"model": model, **body})
    assert response.status_code == 200, response.text
    return response.json()


def refused(client: httpx.Client, path: str, model: str, **body: Any) -> dict[str, Any]:
    """Returns the error of an invalid call, after a check of its format."""
    response = client.post(path, json={"model": model, **body})
    assert response.status_code == 400, response.text
    assert isinstance(response.json()["error"], str) == (path in TEI_PATHS)
    return error_of(response)


def close(found: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(found, wanted, atol=tolerance)
