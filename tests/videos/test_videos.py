"""`/v1/videos` on a real server with real, tiny diffusion models, through the SDK and plain
HTTP.
"""

import base64
import io
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image
from sqlalchemy import func, select, update

from stoker.base.config import Settings
from stoker.platform.web.context import Platform
from stoker.registry.files import service as files
from stoker.server.services import build_services
from stoker.store import db
from stoker.store.tables.files import File
from stoker.store.tables.videos import Video
from stoker.workloads.videos import service
from tests.deployments.support import key_for
from tests.support.deploying import deploy
from tests.support.server import Server
from tests.videos.conftest import LIMIT, QUICK, SLOW, decoded

VIDEOS = "/v1/videos"
INNER = "input_reference[image_url]"
"""Name of a reference object's form field, as the SDK encodes it."""
PROMPT = "a red circle moves to the right"


def create(client: Any, model: str = "film", **fields: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": PROMPT} | fields
    response = client.post(VIDEOS, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def ended(client: Any, video_id: str, timeout: float = 120) -> dict[str, Any]:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        video = client.get(f"{VIDEOS}/{video_id}").json()
        if video["status"] in ("completed", "failed"):
            return video
        time.sleep(0.05)
    raise AssertionError(f"still {video}")


def content(client: Any, video_id: str, **params: str) -> bytes:
    return client.get(f"{VIDEOS}/{video_id}/content", params=params).raise_for_status().content


def refusal(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


def picture(shade: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (96, 64), shade).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def slow(client: Any) -> Iterator[dict[str, Any]]:
    """Yields a video that takes longer to generate than a test runs."""
    video = create(client, **SLOW)
    deadline = time.monotonic() + 60
    while client.get(f"{VIDEOS}/{video['id']}").json()["status"] == "queued":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield video
    client.delete(f"{VIDEOS}/{video['id']}")


class TestSdk:
    def test_create_poll_download(self, sdk: openai.OpenAI) -> None:
        video = sdk.videos.create(
            model="film",
            prompt=PROMPT,
            seconds="1",  # type: ignore[arg-type]
            size="64x32",  # type: ignore[arg-type]
            extra_body={"num_inference_steps": 2, "fps": 8},
        )
        assert video.id.startswith("video_")
        assert (video.object, video.status, video.progress) == ("video", "queued", 0)
        assert (video.model, video.prompt, video.size) == ("film", PROMPT, "64x32")
        # The model makes 8 k + 1 frames, and nine are nearest to a second.
        assert float(video.seconds) == 9 / 8
        done = sdk.videos.poll(video.id)
        assert (done.status, done.progress, done.error) == ("completed", 100, None)
        assert float(done.seconds) == 9 / 8
        assert done.completed_at and done.created_at <= done.completed_at <= time.time()
        assert done.expires_at == pytest.approx(done.completed_at + 24 * 3600, abs=60)
        whole = sdk.videos.download_content(video.id)
        assert whole.response.headers["content-type"] == "video/mp4"
        assert decoded(whole.read()) == (9, 64, 32, 8.0, "h264")
        thumbnail = sdk.videos.download_content(video.id, variant="thumbnail").read()
        assert Image.open(io.BytesIO(thumbnail)).size == (64, 32)

    def test_upload_as_the_beginning(self, sdk: openai.OpenAI) -> None:
        video = sdk.videos.create_and_poll(
            model="still",
            prompt=PROMPT,
            input_reference=("start.png", picture(), "image/png"),
            size="64x32",  # type: ignore[arg-type]
            extra_body={"num_inference_steps": 2, "seconds": 0.36},
        )
        assert video.status == "completed", video.error
        assert decoded(sdk.videos.download_content(video.id).read()).frames == 9

    def test_list_and_delete(self, sdk: openai.OpenAI) -> None:
        video = sdk.videos.create(model="film", prompt=PROMPT, extra_body=QUICK)
        assert sdk.videos.list(limit=1).data[0].id == video.id
        deleted = sdk.videos.delete(video.id)
        assert (deleted.id, deleted.object, deleted.deleted) == (video.id, "video.deleted", True)
        with pytest.raises(openai.NotFoundError, match="Video not found"):
            sdk.videos.retrieve(video.id)


class TestCreate:
    def test_seed_makes_it_again(self, client: Any) -> None:
        made = [create(client, **QUICK, seed=seed)["id"] for seed in (3, 3, 4)]
        assert {ended(client, video_id)["status"] for video_id in made} == {"completed"}
        first, again, other = (content(client, video_id) for video_id in made)
        assert first == again != other

    def test_another_family(self, client: Any) -> None:
        parameters = {"size": "32x32", "seconds": 0.5, "num_inference_steps": 2}
        video = ended(client, create(client, "wan", **parameters)["id"])
        # The model makes 4 k + 1 frames at 16 per second.
        assert (video["seconds"], video["size"]) == (9 / 16, "32x32")
        assert decoded(content(client, video["id"])) == (9, 32, 32, 16.0, "h264")

    def test_says_what_will_be_drawn(self, client: Any, slow: dict[str, Any]) -> None:
        """Every answer has the final length and size, starting with the first one, for each request
        form and in lists.
        """
        cases = [
            # The model's defaults: 161 frames at 25 per second.
            ("film", {}, (161 / 25, "704x512")),
            ("film", {"fps": 8, "seconds": 1, "size": "64x32"}, (9 / 8, "64x32")),
            ("film", {"seconds": "0.36"}, (9 / 25, "704x512")),
            ("wan", {"seconds": 4}, (65 / 16, "832x480")),
        ]
        for model, fields, expected in cases:
            body = {"model": model, "prompt": PROMPT, **fields}
            form = {name: (None, str(value)) for name, value in body.items()}
            for sent in ({"json": body}, {"files": form}):
                created = client.post(VIDEOS, **sent).json()
                listed = client.get(VIDEOS, params={"limit": 1}).json()["data"][0]
                alone = client.get(f"{VIDEOS}/{created['id']}").json()
                client.delete(f"{VIDEOS}/{created['id']}").raise_for_status()
                for answer in (created, listed, alone):
                    assert (answer["id"], answer["seconds"], answer["size"]) == (
                        created["id"],
                        *expected,
                    )

    def test_beginning_in_every_form(self, client: Any) -> None:
        encoded = base64.b64encode(picture()).decode()
        uri = f"data:image/png;base64,{encoded}"
        parameters = QUICK | {"seed": 1}
        made = [
            create(client, "still", **parameters, input_reference=form)["id"]
            for form in (encoded, uri, {"image_url": uri})
        ]
        fields = {name: str(value) for name, value in parameters.items()}
        fields |= {"model": "still", "prompt": PROMPT}
        for form in (
            {"data": fields, "files": {"input_reference": ("a.png", picture())}},
            {"files": {k: (None, v) for k, v in fields.items()} | {INNER: (None, uri)}},
        ):
            response = client.post(VIDEOS, **form)
            assert response.status_code == 200, response.text
            made.append(response.json()["id"])
        assert {ended(client, video_id)["status"] for video_id in made} == {"completed"}
        assert len({content(client, video_id) for video_id in made}) == 1
        other = base64.b64encode(picture((0, 0, 90))).decode()
        another = create(client, "still", **parameters, input_reference=other)["id"]
        ended(client, another)
        assert content(client, another) != content(client, made[0])

    def test_ranges(self, client: Any) -> None:
        video = ended(client, create(client, **QUICK)["id"])
        whole = content(client, video["id"])
        part = client.get(f"{VIDEOS}/{video['id']}/content", headers={"range": "bytes=4-11"})
        assert (part.status_code, part.content) == (206, whole[4:12])
        assert whole[4:8] == b"ftyp"

    def test_same_key_makes_one_video(self, client: Any) -> None:
        headers = {"idempotency-key": "one-video"}
        form = {"model": "film", "prompt": PROMPT, **{k: str(v) for k, v in QUICK.items()}}

        def post(**changed: str) -> httpx.Response:
            # Each form has a different boundary.
            parts = {name: (None, value) for name, value in (form | changed).items()}
            return client.post(VIDEOS, files=parts, headers=headers)

        first, again = post(), post()
        assert first.json()["id"] == again.json()["id"]
        assert again.headers["idempotency-replayed"] == "true"
        assert refusal(post(prompt="another"))[:2] == (409, "idempotency_mismatch")

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"prompt": ""}, "prompt"),
            ({"prompt": None}, "prompt"),
            ({"model": None}, "model"),
            ({"seconds": 0}, "seconds"),
            ({"seconds": 100_000}, "seconds"),
            ({"seconds": "long"}, "seconds"),
            ({"size": "64"}, "size"),
            ({"size": "8x8"}, "size"),
            ({"size": "99999x2"}, "size"),
            ({"fps": 0}, "fps"),
            ({"fps": 1000}, "fps"),
            # Values that this model cannot generate.
            ({"size": "70x34"}, "size"),
            ({"seconds": 119}, "seconds"),
            ({"size": "4096x4096"}, "seconds"),
            ({"num_inference_steps": 0}, "num_inference_steps"),
            ({"num_inference_steps": 10_000}, "num_inference_steps"),
            ({"guidance_scale": -1}, "guidance_scale"),
            ({"seed": -1}, "seed"),
            ({"input_reference": base64.b64encode(picture()).decode()}, "input_reference"),
            ({"model": "still"}, "input_reference"),
            ({"model": "still", "input_reference": {"file_id": "file_1"}}, "input_reference"),
            ({"model": "still", "input_reference": "/etc/passwd"}, "input_reference"),
            ({"model": "still", "input_reference": "http://127.0.0.1/x"}, "input_reference"),
            ({"model": "still", "input_reference": "not base64!"}, "input_reference"),
        ],
        ids=str,
    )
    def test_bad_field(self, client: Any, fields: dict[str, Any], param: str) -> None:
        body = {"model": "film", "prompt": PROMPT} | fields
        response = client.post(VIDEOS, json={k: v for k, v in body.items() if v is not None})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param

    def test_another_pipelines_model(self, client: Any, video_server: Server) -> None:
        response = client.post("/v1/images/generations", json={"model": "film", "prompt": "x"})
        assert response.status_code in (400, 404)
        response = client.post(
            "/v1/chat/completions",
            json={"model": "film", "messages": [{"role": "user", "content": "x"}]},
        )
        assert refusal(response)[:2] == (400, "endpoint_not_supported")
        assert "/v1/videos" in response.json()["error"]["message"]


class TestFailure:
    def test_says_what_would_be_right(self, client: Any) -> None:
        response = client.post(VIDEOS, json={"model": "film", "prompt": PROMPT, "size": "70x34"})
        assert "Nearest: 64x32" in response.json()["error"]["message"]
        video = ended(client, create(client, **QUICK | {"prompt": "a " * 200})["id"])
        assert (video["status"], video["error"]["code"]) == ("failed", "invalid_request")
        assert "at most 128" in video["error"]["message"]
        assert (video["seconds"], video["size"]) == (9 / 25, "64x32")
        assert video["completed_at"] and video["expires_at"] is None
        response = client.get(f"{VIDEOS}/{video['id']}/content")
        assert refusal(response)[:2] == (409, "video_not_completed")
        assert "failed" in response.json()["error"]["message"]

    def test_damaged_image(self, client: Any) -> None:
        broken = base64.b64encode(picture()[:60]).decode()
        video = ended(client, create(client, "still", **QUICK, input_reference=broken)["id"])
        assert (video["status"], video["error"]["code"]) == ("failed", "invalid_media")

    def test_stopped_deployment(self, client: Any) -> None:
        row = next(
            deployment
            for deployment in client.get("/v1/deployments").json()["data"]
            if deployment["model"] == "wan"
        )
        client.post(f"/v1/deployments/{row['id']}/stop").raise_for_status()
        video = ended(client, create(client, "wan")["id"])
        assert (video["status"], video["error"]["code"]) == ("failed", "deployment_stopped")
        client.post(f"/v1/deployments/{row['id']}/start").raise_for_status()


class TestRunning:
    def test_progress_and_no_content_yet(self, client: Any, slow: dict[str, Any]) -> None:
        path = f"{VIDEOS}/{slow['id']}"
        progresses, deadline = set[int](), time.monotonic() + 60
        while len(progresses) < 3:
            assert time.monotonic() < deadline, progresses
            polled = client.get(path)
            progresses.add(polled.json()["progress"])
            time.sleep(0.02)
        assert polled.json()["status"] == "in_progress"
        assert polled.headers["openai-poll-after-ms"] == "1000"
        response = client.get(f"{path}/content")
        assert refusal(response)[:2] == (409, "video_not_completed")
        assert "in_progress" in response.json()["error"]["message"]
        assert max(progresses) < 100

    def test_deleting_stops_it(self, client: Any, slow: dict[str, Any]) -> None:
        waiting = create(client, **QUICK)
        assert client.get(f"{VIDEOS}/{waiting['id']}").json()["status"] == "queued"
        client.delete(f"{VIDEOS}/{slow['id']}").raise_for_status()
        assert client.get(f"{VIDEOS}/{slow['id']}").status_code == 404
        assert client.delete(f"{VIDEOS}/{slow['id']}").status_code == 404
        # The waiting video starts only after the model has released the first one.
        assert ended(client, waiting["id"])["status"] == "completed"

    def test_queue_is_bounded(self, client: Any, slow: dict[str, Any]) -> None:
        made = [create(client, **QUICK)["id"] for _ in range(LIMIT - 1)]
        response = client.post(VIDEOS, json={"model": "film", "prompt": PROMPT})
        assert refusal(response)[:2] == (429, "queue_full")
        assert int(response.headers["retry-after"]) > 0
        for video_id in made:
            client.delete(f"{VIDEOS}/{video_id}").raise_for_status()
        create(client, **QUICK)


class TestVersions:
    def test_jobs_wait_while_a_version_makes_room(
        self, client: Any, folders: dict[str, Path]
    ) -> None:
        """The live version is unloaded first. No job fails, before, during or after that."""
        made = deploy(client, folders["film"], "replaced")
        path = f"/v1/deployments/{made['id']}"
        videos = [create(client, "replaced", **QUICK)]
        assert ended(client, videos[0]["id"])["status"] == "completed"
        videos.append(create(client, "replaced", **QUICK | {"num_inference_steps": 40}))
        changed = {"dtype": "bfloat16", "strategy": "in_place"}
        version = client.post(f"{path}/versions", json=changed).raise_for_status().json()
        deadline = time.monotonic() + 120
        while version["status"] in ("preparing", "checking"):
            assert time.monotonic() < deadline, version
            if len(videos) < LIMIT:
                videos.append(create(client, "replaced", **QUICK))
            time.sleep(0.1)
            place = f"{path}/versions/{version['id']}"
            version = client.get(place).raise_for_status().json()
        assert version["status"] == "live"
        results = [ended(client, video["id"]) for video in videos]
        assert [(video["status"], video["error"]) for video in results] == [
            ("completed", None)
        ] * len(videos)
        client.delete(path).raise_for_status()


class TestScope:
    def test_others_see_nothing(self, client: Any, video_server: Server) -> None:
        video = ended(client, create(client, **QUICK)["id"])
        made = client.get("/v1/files", params={"limit": 2}).json()["data"]
        assert {item["purpose"] for item in made} == {"video", "thumbnail"}
        rows = client.get("/v1/deployments").json()["data"]
        keys = {row["model"]: key_for(client, row["id"]) for row in rows}
        path = f"{VIDEOS}/{video['id']}"
        paths = (path, f"{path}/content", *(f"/v1/files/{item['id']}" for item in made))
        with video_server.account("stranger") as stranger, video_server.client(keys["wan"]) as wan:
            for other in (stranger, wan):
                assert [other.get(item).status_code for item in paths] == [404] * len(paths)
                assert other.delete(path).status_code == 404
        with video_server.client(keys["film"]) as film_client:
            assert film_client.get(path).json() == video
            assert video["id"] in [item["id"] for item in film_client.get(VIDEOS).json()["data"]]
            assert film_client.post(VIDEOS, json={"model": "wan", "prompt": "x"}).status_code == 401


class TestExpiry:
    @pytest.mark.one_machine
    async def test_content_goes_and_says_so(self, client: Any, video_server: Server) -> None:
        video = ended(client, create(client, **QUICK)["id"])
        platform = build_services(Settings(data_dir=video_server.data_dir)).get(Platform)
        past = db.now() - timedelta(seconds=1)
        try:
            async with platform.database.transaction() as session:
                row = await session.get_one(Video, video["id"])
                file = await session.get_one(File, row.video_id)
                path = platform.blobs.local_path(file.blob_key)
                await session.execute(
                    update(File).where(File.owner_id == row.id).values(expires_at=past)
                )
                row.expires_at = past
            response = client.get(f"{VIDEOS}/{video['id']}/content")
            assert refusal(response)[:2] == (404, "video_expired")
            assert path.exists()
            await files.sweep(platform.database, platform.blobs, db.now())
            assert not path.exists()
            assert refusal(client.get(f"{VIDEOS}/{video['id']}/content"))[1] == "video_expired"
            # The job outlives its content.
            assert client.get(f"{VIDEOS}/{video['id']}").json()["status"] == "completed"
            await service.forget_ended(platform, db.now() + service.KEPT)
            assert client.get(f"{VIDEOS}/{video['id']}").status_code == 404
        finally:
            await platform.media.close()
            await platform.database.close()

    @pytest.mark.one_machine
    async def test_nothing_is_left_behind(self, client: Any, video_server: Server) -> None:
        """After all videos are deleted, no row and no byte remains. This test comes last."""
        while videos := client.get(VIDEOS, params={"limit": 100}).json()["data"]:
            for video in videos:
                client.delete(f"{VIDEOS}/{video['id']}").raise_for_status()
        platform = build_services(Settings(data_dir=video_server.data_dir)).get(Platform)
        try:
            async with platform.database.reading() as session:
                for table in (Video, File):
                    assert await session.scalar(select(func.count()).select_from(table)) == 0
            folder = Path(video_server.data_dir) / "blobs" / "files"
            deadline = time.monotonic() + 30
            while list(folder.glob("*")):
                assert time.monotonic() < deadline, list(folder.glob("*"))
                time.sleep(0.05)
        finally:
            await platform.media.close()
            await platform.database.close()
