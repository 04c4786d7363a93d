"""Conversion of the inputs of `stoker call`."""

from pathlib import Path
from typing import Any

import pytest

from stoker.cli.inputs import CHAT, placed, read
from stoker.client.errors import WrongUseError
from stoker.client.media import MEDIA, TRANSCRIPTIONS, TRANSLATIONS
from stoker.inference.openai.registry import OPERATIONS
from stoker.models.tasks.registry import TASKS

IMAGES = "/v1/classifications/image"
LABELS = "/v1/classifications/zero-shot/image"
QUESTIONS = "/v1/question-answering/visual"
TOKENS = "/v1/classifications/token"
URL = "https://pictures.example/a.png"


@pytest.fixture
def png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a file in the working folder, so that its name alone is its path."""
    monkeypatch.chdir(tmp_path)
    path = Path("a.png")
    path.write_bytes(b"picture")
    Path("b b.png").write_bytes(b"other")
    Path("folder").mkdir()
    return path


def of(endpoint: str, *arguments: str, pipeline: str = "", lines: Path | None = None) -> Any:
    model = {"id": "m", "pipeline": pipeline}
    inputs = placed(read(arguments, lines), model, endpoint)
    return inputs.fields, list(inputs.files)


class TestTable:
    def test_is_of_the_tasks_that_take_media(self) -> None:
        sounds = (TRANSCRIPTIONS, TRANSLATIONS)
        ours = {path: entry for path, entry in MEDIA.items() if path not in sounds}
        assert set(ours) == {task.path for task in TASKS.values() if task.media}
        for task in TASKS.values():
            if task.media:
                taking = MEDIA[task.path]
                assert task.media[taking.media] == taking.kind
                assert taking.media == task.request.input_fields[0]
                required = {
                    name for name, field in task.request.model_fields.items() if field.is_required()
                }
                # The command can pass every required field: the labels, or the question.
                assert required - {taking.media} == ({taking.text} if taking.text else set())

    def test_transcriptions(self) -> None:
        (operation,) = (candidate for candidate in OPERATIONS if candidate.path == TRANSCRIPTIONS)
        assert operation.media == {MEDIA[TRANSCRIPTIONS].media: MEDIA[TRANSCRIPTIONS].kind}


class TestMedia:
    def test_one_file(self, png: Path) -> None:
        assert of(IMAGES, "a.png") == ({}, [("inputs", png)])
        assert of(TRANSCRIPTIONS, "a.png") == ({}, [("file", png)])

    def test_several_are_a_list(self, png: Path) -> None:
        other = Path("b b.png")
        assert of(IMAGES, "a.png", "b b.png") == ({}, [("inputs[]", png), ("inputs[]", other)])
        assert of(IMAGES, "a.png", URL) == ({}, [("inputs[]", png), ("inputs[]", URL)])

    def test_lines_of_a_file_are_a_list(self, png: Path, tmp_path: Path) -> None:
        lines = tmp_path / "lines"
        lines.write_text("a.png\n")
        assert of(IMAGES, lines=lines) == ({}, [("inputs[]", png)])

    def test_addresses_and_base64(self, png: Path) -> None:
        assert of(IMAGES, URL) == ({"inputs": URL}, [])
        assert of(IMAGES, URL, "data:image/png;base64,AA") == (
            {"inputs": [URL, "data:image/png;base64,AA"]},
            [],
        )
        assert of(IMAGES, "iVBORw0KGgo=") == ({"inputs": "iVBORw0KGgo="}, [])
        assert of(IMAGES, "A" * 100_000) == ({"inputs": "A" * 100_000}, [])

    def test_question_beside(self, png: Path) -> None:
        question = "What is in a.png?"
        assert of(QUESTIONS, "a.png", question) == ({"question": question}, [("image", png)])
        assert of(QUESTIONS, question, URL) == ({"question": question, "image": URL}, [])
        assert of(QUESTIONS, "a.png", "one?", "two?") == (
            {"question": ["one?", "two?"]},
            [("image", png)],
        )
        assert of(QUESTIONS, "a.png") == ({}, [("image", png)])

    def test_labels_beside(self, png: Path) -> None:
        assert of(LABELS, "a.png", "cat") == ({"candidate_labels": ["cat"]}, [("image", png)])
        assert of(LABELS, "a.png", "cat", "dog")[0] == {"candidate_labels": ["cat", "dog"]}

    @pytest.mark.parametrize("endpoint", [IMAGES, LABELS, QUESTIONS, TRANSCRIPTIONS])
    @pytest.mark.parametrize("name", ["gone.png", "gone.WAV", "./not there.mp4", "x/gone.pdf"])
    def test_file_that_is_not_there(self, png: Path, endpoint: str, name: str) -> None:
        with pytest.raises(WrongUseError, match=f"File '{name}' not found"):
            of(endpoint, name)

    def test_text_that_ends_like_a_file(self, png: Path) -> None:
        assert of(QUESTIONS, "a.png", "who is in c.png")[0] == {"question": "who is in c.png"}

    def test_folder(self, png: Path) -> None:
        with pytest.raises(WrongUseError, match="'folder' is a folder"):
            of(IMAGES, "folder")


class TestTexts:
    def test_stay_texts(self, png: Path) -> None:
        """A text model never receives a file, even if the text is a file's name."""
        assert of(TOKENS, "a.png") == ({"inputs": "a.png"}, [])
        assert of(TOKENS, "gone.png", "x") == ({"inputs": ["gone.png", "x"]}, [])


class TestChat:
    def test_text(self, png: Path) -> None:
        for pipeline in ("text-generation", "image-text-to-text"):
            fields, files = of(CHAT, "Hello", pipeline=pipeline)
            assert (fields, files) == ({"messages": [{"role": "user", "content": "Hello"}]}, [])

    def test_images_of_a_model_that_sees(self, png: Path) -> None:
        fields, _ = of(CHAT, "a.png", URL, "What is this?", pipeline="image-text-to-text")
        url = "data:image;base64,cGljdHVyZQ=="
        assert fields["messages"][0]["content"] == [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "text", "text": "What is this?"},
        ]

    def test_several_texts_of_one_that_does_not(self, png: Path) -> None:
        with pytest.raises(WrongUseError, match="a single text"):
            of(CHAT, "a", "b", pipeline="text-generation")


def test_arguments_or_lines(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\n")
    with pytest.raises(WrongUseError, match="either"):
        read(["a"], tmp_path / "lines")
