"""Commands that save images, speech and video to files."""

import io
import json
from pathlib import Path

import av
import httpx
import pytest
from PIL import Image

from tests.cli.support import Cli
from tests.support import diffusion, speech, video
from tests.support.deploying import deploy
from tests.support.server import Server


@pytest.fixture(scope="module")
def studio(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Returns the command with a key for models that make media."""
    server.wait_ready()
    root = tmp_path_factory.mktemp("studio")
    client: httpx.Client
    with server.account("studio") as client:
        drawing = diffusion.made(diffusion.stable_diffusion, root / "drawing")
        deploy(client, drawing, "drawing")
        deploy(client, speech.vits(root / "speaking"), "speaking")
        deploy(client, video.ltx(root / "film"), "film")
        key = str(client.headers["authorization"]).removeprefix("Bearer ")
    return Cli(server.base_url, key)


class TestImage:
    def test_files_by_number_and_format(self, studio: Cli, tmp_path: Path) -> None:
        target = tmp_path / "circle.webp"
        done = studio.run(
            "image", "drawing", "a red circle", "-n", "2", "-o", str(target),
            "-p", "num_inference_steps=2", "--json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        written = [Path(row["file"]) for row in json.loads(done.stdout)]
        assert written == [tmp_path / "circle-1.webp", tmp_path / "circle-2.webp"]
        assert {Image.open(path).format for path in written} == {"WEBP"}

    def test_edit(self, studio: Cli, tmp_path: Path) -> None:
        source, target = tmp_path / "source.png", tmp_path / "edited.png"
        Image.new("RGB", (64, 64), "white").save(source)
        done = studio.run(
            "image", "drawing", "a red circle", "--edit", str(source), "-o", str(target),
            "-p", "num_inference_steps=4", "-p", "strength=0.5",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert str(target) in done.stdout
        assert Image.open(target).format == "PNG"

    def test_wrong_use(self, studio: Cli, tmp_path: Path) -> None:
        done = studio.run("image", "drawing", "x", "-o", str(tmp_path / "circle.bmp"))
        assert done.returncode == 2
        assert ".webp" in done.stderr
        mask = tmp_path / "mask.png"
        Image.new("L", (8, 8)).save(mask)
        done = studio.run("image", "drawing", "x", "--mask", str(mask))
        assert done.returncode == 2
        assert "--edit" in done.stderr

    def test_call_names_the_command(self, studio: Cli) -> None:
        done = studio.run("call", "drawing", "a red circle")
        assert done.returncode == 2
        assert "stoker image" in done.stderr


class TestSpeak:
    def test_file_of_its_names_format(self, studio: Cli, tmp_path: Path) -> None:
        target = tmp_path / "speech.flac"
        done = studio.run("speak", "speaking", "hello", "-o", str(target))
        assert done.returncode == 0, done.stderr
        with av.open(io.BytesIO(target.read_bytes())) as file:
            assert file.streams.audio[0].codec_context.name == "flac"

    def test_error_leaves_no_file(self, studio: Cli, tmp_path: Path) -> None:
        target = tmp_path / "speech.wav"
        done = studio.run("speak", "speaking", "hello", "-p", "speed=99", "-o", str(target))
        assert done.returncode == 1
        assert "speed" in done.stderr
        assert list(tmp_path.iterdir()) == []


class TestVideo:
    def test_waits_and_writes(self, studio: Cli, tmp_path: Path) -> None:
        target = tmp_path / "circle.mp4"
        done = studio.run(
            "video", "film", "a red circle", "-o", str(target), "--json",
            "-p", "num_inference_steps=2", "-p", "size=64x32", "-p", "seconds=0.36",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        job = json.loads(done.stdout)
        assert (job["status"], job["size"]) == ("completed", "64x32")
        with av.open(io.BytesIO(target.read_bytes())) as file:
            assert len(list(file.decode(file.streams.video[0]))) == 9
        thumbnail = tmp_path / "circle.webp"
        done = studio.run("videos", "download", job["id"], "-o", str(thumbnail), "--thumbnail")
        assert done.returncode == 0, done.stderr
        assert Image.open(thumbnail).size == (64, 32)

    def test_job_of_its_own(self, studio: Cli) -> None:
        done = studio.run("video", "film", "a boat", "--no-wait", "--json")
        job = json.loads(done.stdout)
        assert job["status"] == "queued"
        listed = studio.run("videos", "list", "--json")
        assert job["id"] in [row["id"] for row in json.loads(listed.stdout)]
        assert job["id"] in studio.run("videos", "show", job["id"]).stdout
        assert studio.run("videos", "delete", job["id"], "--yes").returncode == 0
        assert studio.run("videos", "show", job["id"]).returncode == 1

    def test_failure_says_why(self, studio: Cli, tmp_path: Path) -> None:
        target = tmp_path / "bad.mp4"
        done = studio.run("video", "film", "x", "-p", "size=70x34", "-o", str(target))
        assert done.returncode == 1
        assert "64x32" in done.stderr
        assert not target.exists()
