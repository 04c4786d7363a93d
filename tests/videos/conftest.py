"""A real server with tiny video models and random weights."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import av
import openai
import pytest

from tests.support import video as models
from tests.support.deploying import deploy
from tests.support.server import Server

LIMIT = 6
"""Maximum number of jobs per deployment in the server's settings."""
QUICK: dict[str, Any] = {"num_inference_steps": 2, "size": "64x32", "seconds": 0.36}
"""Parameters for nine frames of LTX at 25 per second."""
SLOW: dict[str, Any] = QUICK | {"num_inference_steps": 200, "size": "256x256", "seconds": 5}


class Clip(NamedTuple):
    """Properties of a video file as a player reads them."""

    frames: int
    width: int
    height: int
    fps: float
    codec: str


def decoded(content: bytes) -> Clip:
    opened: Any = av.open(io.BytesIO(content))
    with opened as file:
        stream = file.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(stream)]
        height, width = frames[0].shape[:2]
        rate = float(stream.average_rate)
        return Clip(len(frames), width, height, rate, stream.codec_context.name)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("video-models")
    return {
        "film": models.ltx(root / "film"),
        "wan": models.wan(root / "wan"),
        "still": models.ltx(root / "still", image=True),
    }


@pytest.fixture(scope="session")
def video_server(restartable: Server) -> Server:
    return restartable


@pytest.fixture(scope="session")
def client(video_server: Server, folders: dict[str, Path]) -> Iterator[Any]:
    with video_server.account("videos") as client:
        for model, folder in folders.items():
            deploy(client, folder, model)
        yield client


@pytest.fixture(scope="session")
def sdk(video_server: Server, client: Any) -> Iterator[openai.OpenAI]:
    key = client.headers["authorization"].removeprefix("Bearer ")
    with openai.OpenAI(base_url=f"{video_server.base_url}/v1", api_key=key, max_retries=0) as sdk:
        yield sdk
