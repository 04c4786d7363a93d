"""`stoker call` sends files to the demo's models."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.support import Cli
from tests.demo.test_demo import ROOT
from tests.support.compare import equal
from tests.support.server import Server

MEDIA = ROOT / "stoker" / "demo" / "media"


@pytest.fixture(scope="module")
def cli(demo: Server, state: Any) -> Cli:
    return Cli(demo.base_url, state["account_key"])


@pytest.fixture(scope="module")
def client(demo: Server, state: Any) -> httpx.Client:
    return demo.client(state["account_key"])


def media(name: str) -> str:
    return str(MEDIA / name)


class TestCall:
    def test_image(self, cli: Cli) -> None:
        [best, _] = cli.json("call", "tiny-digits", media("seven.png"), "-p", "top_k=2")
        assert best["label"] == "7"

    def test_images(self, cli: Cli, client: httpx.Client) -> None:
        names = ("seven.png", "circle.png")
        answers = cli.json("call", "tiny-digits", *map(media, names), "-p", "top_k=1")
        files = [("inputs", (name, (MEDIA / name).read_bytes())) for name in names]
        path = "/v1/classifications/image"
        body = {"model": "tiny-digits", "top_k": "1"}
        equal(answers, client.post(path, files=files, data=body).json())
        assert len(answers) == 2

    def test_embedding(self, cli: Cli) -> None:
        vector = cli.json("call", "tiny-image-encoder", media("circle.png"))
        assert all(isinstance(number, float) for number in vector)

    @pytest.mark.parametrize(
        "given",
        [
            (media("scene.png"), "-p", "question=What colour is the circle?"),
            (media("scene.png"), "What colour is the circle?"),
        ],
    )
    def test_question(self, cli: Cli, client: httpx.Client, given: tuple[str, ...]) -> None:
        files = {"image": ("scene.png", (MEDIA / "scene.png").read_bytes())}
        body = {"model": "tiny-vqa", "question": "What colour is the circle?", "top_k": "2"}
        expected = client.post("/v1/question-answering/visual", files=files, data=body).json()
        equal(cli.json("call", "tiny-vqa", *given, "-p", "top_k=2"), expected)

    def test_labels(self, cli: Cli) -> None:
        labels = ("a red circle", "a blue square", "a green star")
        answers = cli.json("call", "tiny-clip", media("circle.png"), *labels)
        assert {entry["label"] for entry in answers} == set(labels)
        listed = f"candidate_labels={json.dumps(labels)}"
        equal(cli.json("call", "tiny-clip", media("circle.png"), "-p", listed), answers)

    def test_document(self, cli: Cli) -> None:
        boxes = [["Invoice", [40, 30, 180, 60]], ["us-001", [200, 30, 290, 60]]]
        answers = cli.json(
            "call", "random-document-qa", media("scene.png"), "What is the invoice number?",
            "-p", f"word_boxes={json.dumps(boxes)}",
        )  # fmt: skip
        assert answers[0]["answer"]

    def test_sound(self, cli: Cli) -> None:
        labels = cli.json("call", "tiny-sounds", media("siren.wav"), "-p", "top_k=1")
        assert labels[0]["label"] == "siren"
        recorded = cli.json("call", "tiny-transcriber", media("seven-three-one.wav"))
        assert recorded["text"] == "seven three one"

    def test_video(self, cli: Cli) -> None:
        assert len(cli.json("call", "tiny-video", media("moving.mp4"), "-p", "top_k=2")) == 2

    def test_model_that_sees(self, cli: Cli) -> None:
        answer = cli.json("call", "tiny-vision", media("scene.png"), "What colour is the square?")
        assert answer["usage"]["prompt_tokens"] > 16
        text = answer["choices"][0]["message"]["content"]
        alone = cli.run(
            "chat", "tiny-vision", "What colour is the square?", "--image", media("scene.png")
        )
        assert alone.stdout.strip() == text.strip()

    def test_file_that_is_not_there(self, cli: Cli, tmp_path: Path) -> None:
        done = cli.run("call", "tiny-digits", str(tmp_path / "gone.png"))
        assert done.returncode == 2
        assert "not found" in done.stderr
        assert "an image" in done.stderr

    def test_given_twice(self, cli: Cli) -> None:
        done = cli.run("call", "tiny-vqa", media("scene.png"), "a?", "-p", "question=b?")
        assert done.returncode == 2
        assert "'question' is given twice" in done.stderr

    def test_text_of_a_text_model_stays_text(self, cli: Cli) -> None:
        assert cli.json("call", "tiny-sentiment", media("scene.png"))[0]["label"]
