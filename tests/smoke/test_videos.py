import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.videos.conftest import decoded


def test_a_video_is_made_and_deleted(
    smoke: httpx.Client, deployed: Callable[[str], dict[str, Any]]
) -> None:
    deployed("random-video-maker")
    body = {
        "model": "random-video-maker",
        "prompt": "a red circle",
        "num_inference_steps": 2,
        "size": "64x32",
        "seconds": 2,
    }
    video = smoke.post("/v1/videos", json=body).raise_for_status().json()
    path = f"/v1/videos/{video['id']}"
    deadline = time.monotonic() + 60
    while video["status"] not in ("completed", "failed"):
        assert time.monotonic() < deadline, video
        time.sleep(0.1)
        video = smoke.get(path).raise_for_status().json()
    assert video["status"] == "completed", video
    clip = decoded(smoke.get(f"{path}/content").raise_for_status().content)
    assert (clip.width, clip.height) == (64, 32)
    assert clip.frames > 1
    assert clip.frames / clip.fps == pytest.approx(float(video["seconds"]), abs=0.01)
    smoke.delete(path).raise_for_status()
    assert smoke.get(path).status_code == 404
