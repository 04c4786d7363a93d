"""A tiny Whisper on a real server, through the real openai SDK."""

import base64
import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy
import openai
import pytest
import transformers
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

import stoker.demo
from tests.deployments.support import check_error
from tests.support import recognition, sdk2
from tests.support.deploying import deploy
from tests.support.hub import inference_client
from tests.support.media import sound, wav
from tests.support.server import Server

MODEL = "tiny"
RATE = 16_000
SOUNDS = [sound(seed, 0.3 + 0.05 * seed) for seed in range(12)]
ONE = wav(SOUNDS[0])
LONG = sound(20, 2.5 * recognition.SHORT_S)
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
PLAIN = {"num_beams": 1, "max_new_tokens": 36, "task": "transcribe"}
"""Options of the pipeline, so that it generates as many tokens as the tiny model has room for."""


def named(content: bytes) -> tuple[str, bytes]:
    return ("clip.wav", content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers.set_seed(1)
    made = tmp_path_factory.mktemp("whisper")
    recognition.whisper(made)
    return made


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    return transformers.pipeline("automatic-speech-recognition", model=str(folder), device="cpu")


@pytest.fixture(scope="module")
def account(server: Server, folder: Path) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("transcription") as client:
        row = deploy(client, folder, MODEL, readiness="hot")
        assert row["pipeline"] == "automatic-speech-recognition"
        deploy(client, Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment", "other")
        yield client


@pytest.fixture(scope="module")
def sdk(account: httpx.Client) -> openai.OpenAI:
    key = str(account.headers["authorization"]).removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{account.base_url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def text(sdk: openai.OpenAI) -> str:
    """Returns the transcription of `ONE`."""
    return sdk.audio.transcriptions.create(file=named(ONE), model=MODEL).text


class TestText:
    def test_asked_for_at_once(self, sdk: openai.OpenAI, pipe: Any) -> None:
        def ask(samples: Any) -> str:
            return sdk.audio.transcriptions.create(file=named(wav(samples)), model=MODEL).text

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, SOUNDS))
        expected = [pipe(clip.copy(), generate_kwargs=PLAIN)["text"].strip() for clip in SOUNDS]
        assert answers == expected
        assert len(set(expected)) > 3

    def test_usage(self, sdk: openai.OpenAI) -> None:
        answer = sdk.audio.transcriptions.create(file=named(ONE), model=MODEL)
        assert answer.usage is not None
        assert answer.usage.type == "duration"
        assert answer.usage.seconds == pytest.approx(len(SOUNDS[0]) / RATE)

    def test_translation(self, sdk: openai.OpenAI, pipe: Any) -> None:
        for samples in SOUNDS[:4]:
            answer = sdk.audio.translations.create(file=named(wav(samples)), model=MODEL)
            theirs = pipe(samples.copy(), generate_kwargs={**PLAIN, "task": "translate"})
            assert answer.text == theirs["text"].strip()

    def test_a_given_language(self, sdk: openai.OpenAI, pipe: Any) -> None:
        for language in ("de", "en"):
            answer = sdk.audio.transcriptions.create(
                file=named(ONE), model=MODEL, language=language
            )
            theirs = pipe(SOUNDS[0].copy(), generate_kwargs={**PLAIN, "language": language})
            assert answer.text == theirs["text"].strip()

    def test_longer_than_a_window(self, sdk: openai.OpenAI, pipe: Any) -> None:
        answer = sdk.audio.transcriptions.create(file=named(wav(LONG)), model=MODEL)
        theirs = pipe(LONG.copy(), generate_kwargs={**PLAIN, "max_new_tokens": 37})
        assert answer.text == theirs["text"].strip()

    def test_a_json_body(self, account: httpx.Client, text: str) -> None:
        body = {"model": MODEL, "file": base64.b64encode(ONE).decode()}
        assert account.post(TRANSCRIPTIONS, json=body).json()["text"] == text

    def test_fields_that_ask_for_nothing(self, sdk: openai.OpenAI, text: str) -> None:
        answer = sdk.audio.transcriptions.create(
            file=named(ONE),
            model=MODEL,
            chunking_strategy="auto",
            extra_body={"brand_new": "field"},
        )
        assert answer.text == text


@pytest.fixture(scope="module")
def hub(account: httpx.Client) -> InferenceClient:
    return inference_client(account, MODEL, TRANSCRIPTIONS)


class TestInferenceClient:
    """The client of huggingface_hub, which sends files bare, or in base64 with parameters."""

    def test_files(self, hub: InferenceClient, text: str, tmp_path: Path) -> None:
        path = tmp_path / "clip.wav"
        path.write_bytes(ONE)
        for audio in (ONE, path, str(path)):
            assert hub.automatic_speech_recognition(audio).text == text

    def test_parameters(self, hub: InferenceClient, pipe: Any) -> None:
        for language in ("de", "en"):
            transcription = hub.automatic_speech_recognition(ONE, extra_body={"language": language})
            theirs = pipe(SOUNDS[0].copy(), generate_kwargs={**PLAIN, "language": language})
            assert transcription.text == theirs["text"].strip()

    @pytest.mark.parametrize(
        ("given", "field", "what"),
        [
            ({"return_timestamps": True}, "return_timestamps", "timestamp_granularities"),
            ({"language": 7}, "language", "string"),
            ({"known_speaker_names": ["a"]}, "known_speaker_names", "not distinguished"),
        ],
    )
    def test_refused(
        self, hub: InferenceClient, given: dict[str, Any], field: str, what: str
    ) -> None:
        with pytest.raises(HfHubHTTPError) as refused:
            hub.automatic_speech_recognition(ONE, extra_body=given)
        error = refused.value.response.json()["error"]
        assert (refused.value.response.status_code, error["param"]) == (400, field)
        assert what in error["message"]

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"inputs": "aGk=", "file": "aGk="}, "file"),
            ({"inputs": "aGk=", "parameters": {"file": "aGk="}}, "file"),
            ({"inputs": "aGk=", "parameters": [1]}, "parameters"),
            ({"inputs": "aGk=", "parameters": {"language": "en"}, "language": "de"}, "language"),
            ({"inputs": 7}, "file"),
        ],
    )
    def test_wrong_bodies(self, account: httpx.Client, body: dict[str, Any], field: str) -> None:
        answer = account.post(TRANSCRIPTIONS, json={"model": MODEL, **body})
        check_error(answer, 400, "InvalidRequestError", "invalid_request", field)

    def test_bare_with_a_query(self, account: httpx.Client, sdk: openai.OpenAI) -> None:
        expected = sdk.audio.transcriptions.create(
            file=named(ONE),
            model=MODEL,
            response_format="verbose_json",
            timestamp_granularities=["word"],
        )
        fields = {
            "model": MODEL,
            "response_format": "verbose_json",
            "timestamp_granularities[]": "word",
        }
        once = {name.removesuffix("[]"): value for name, value in fields.items()}
        for kind, params in (
            ("audio/wav", fields),
            ("application/octet-stream", once),
            # The content decides, so the sound of a video is accepted.
            ("video/mp4", fields),
            ("application/ogg", fields),
        ):
            answer = account.post(
                TRANSCRIPTIONS, content=ONE, headers={"content-type": kind}, params=params
            )
            assert answer.json()["words"] == [word.to_dict() for word in expected.words or ()]
        answer = account.post(
            TRANSLATIONS,
            content=ONE,
            headers={"content-type": "audio/wav"},
            params={"model": MODEL, "response_format": "text"},
        )
        theirs = sdk.audio.translations.create(file=named(ONE), model=MODEL)
        assert answer.text == f"{theirs.text}\n"


class TestForms:
    def test_text(self, sdk: openai.OpenAI, text: str) -> None:
        answer = sdk.audio.transcriptions.create(
            file=named(ONE), model=MODEL, response_format="text"
        )
        assert answer == f"{text}\n"

    def test_verbose(self, sdk: openai.OpenAI) -> None:
        answer = sdk.audio.transcriptions.create(
            file=named(ONE), model=MODEL, response_format="verbose_json", temperature=0
        )
        assert answer.language in ("english", "german")
        assert answer.duration == pytest.approx(len(SOUNDS[0]) / RATE)
        assert answer.words is None
        assert answer.segments
        for at, segment in enumerate(answer.segments):
            assert segment.id == at
            assert segment.start <= segment.end
            assert segment.avg_logprob <= 0
            assert segment.compression_ratio >= 0
        assert "".join(segment.text for segment in answer.segments).strip() == answer.text
        assert answer.model_extra is not None
        assert answer.model_extra["task"] == "transcribe"

    @pytest.mark.parametrize("kinds", [["word"], ["word", "segment"]], ids=str)
    def test_words(self, sdk: openai.OpenAI, pipe: Any, kinds: Any) -> None:
        answer: Any = sdk.audio.transcriptions.create(
            file=named(ONE),
            model=MODEL,
            response_format="verbose_json",
            timestamp_granularities=kinds,
        )
        recognition.stop_with_the_sound(pipe.model, SOUNDS[0])
        theirs = pipe(
            SOUNDS[0].copy(),
            return_timestamps="word",
            generate_kwargs={**PLAIN, "max_new_tokens": 37},
        )
        recognition.stop_with_the_sound(pipe.model, None)
        assert answer.words
        assert [word.word for word in answer.words] == [
            chunk["text"].strip() for chunk in theirs["chunks"]
        ]
        assert all(0 <= word.start <= answer.duration for word in answer.words)
        assert (answer.segments is not None) == ("segment" in kinds)

    def test_one_of_a_list_without_brackets(self, account: httpx.Client) -> None:
        """A list field without brackets is accepted, as `curl -F` sends it."""
        for field, value, shown, form in (
            ("timestamp_granularities", "word", "words", "verbose_json"),
            ("timestamp_granularities", '["word"]', "words", "verbose_json"),
            ("include", "logprobs", "logprobs", "json"),
        ):
            data = {"model": MODEL, "response_format": form, field: value}
            answer = account.post(TRANSCRIPTIONS, data=data, files={"file": ONE})
            assert shown in answer.json()

    @pytest.mark.parametrize("form", ["srt", "vtt"])
    def test_subtitles(self, sdk: openai.OpenAI, account: httpx.Client, form: Any) -> None:
        create: Any = sdk.audio.transcriptions.create
        verbose = create(file=named(ONE), model=MODEL, response_format="verbose_json")
        expected = [
            " ".join(segment.text.replace("-->", "->").split()) for segment in verbose.segments
        ]
        text: str = create(file=named(ONE), model=MODEL, response_format=form)
        mark = {"srt": ",", "vtt": "."}[form]
        clock = rf"00:00:0\d\{mark}\d{{3}}"
        cues = re.findall(rf"^{clock} --> {clock}\n(.*)\n\n", text, re.MULTILINE)
        assert cues == expected
        assert text.startswith("1\n00:" if form == "srt" else "WEBVTT\n\n00:")
        data = {"model": MODEL, "response_format": form}
        answer = account.post(TRANSCRIPTIONS, data=data, files={"file": ONE})
        kind = {"srt": "text/plain", "vtt": "text/vtt"}[form]
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert answer.text == text

    def test_stream(self, sdk: openai.OpenAI) -> None:
        sizes: list[int] = []
        for content in (ONE, wav(LONG)):
            events: list[Any] = list(
                sdk.audio.transcriptions.create(file=named(content), model=MODEL, stream=True)
            )
            text = "".join(event.delta for event in events[:-1])
            assert {event.type for event in events[:-1]} == {"transcript.text.delta"}
            assert events[-1].type == "transcript.text.done"
            assert events[-1].text == text
            assert events[-1].usage.type == "tokens"
            assert events[-1].usage.output_tokens > 0
            sizes.append(len(events))
        assert sizes[1] > 2

    def test_logprobs(self, sdk: openai.OpenAI, text: str) -> None:
        answer = sdk.audio.transcriptions.create(file=named(ONE), model=MODEL, include=["logprobs"])
        assert answer.logprobs
        assert "".join(entry.token or "" for entry in answer.logprobs).strip() == text
        assert all(entry.logprob is not None and entry.logprob <= 0 for entry in answer.logprobs)

    def test_a_prompt(self, sdk: openai.OpenAI, pipe: Any) -> None:
        answer = sdk.audio.transcriptions.create(file=named(ONE), model=MODEL, prompt="two one")
        prompt = pipe.tokenizer.get_prompt_ids("two one", return_tensors="pt")
        options = {**PLAIN, "prompt_ids": prompt, "max_new_tokens": 36 - len(prompt)}
        theirs = pipe(SOUNDS[0].copy(), generate_kwargs=options)
        assert answer.text == theirs["text"].strip()


class TestRefused:
    @pytest.mark.parametrize(
        ("field", "given"),
        [
            ("response_format", {"response_format": "diarized_json"}),
            ("response_format", {"response_format": "srt", "stream": True}),
            ("temperature", {"temperature": 1.5}),
            ("temperature", {"temperature": -0.1}),
            ("temperature", {"temperature": 1e-300}),
            ("language", {"language": "xx"}),
            ("language", {"language": "fr"}),
            ("prompt", {"prompt": "<|startoftranscript|>"}),
            ("prompt", {"prompt": "one " * 4000}),
            ("include", {"include": ["logprobs"], "response_format": "verbose_json"}),
            ("include[0]", {"include": ["everything"]}),
            ("timestamp_granularities", {"timestamp_granularities": ["word"]}),
            (
                "timestamp_granularities[0]",
                {"timestamp_granularities": ["line"], "response_format": "verbose_json"},
            ),
            ("chunking_strategy", {"chunking_strategy": {"type": "server_vad"}}),
            ("chunking_strategy", {"chunking_strategy": "never"}),
            ("keywords", {"keywords": ["one"]}),
            ("languages", {"languages": ["en", "de"]}),
            ("known_speaker_names", {"known_speaker_names": ["Ada"]}),
            ("known_speaker_references", {"known_speaker_references": ["data:,"]}),
        ],
        ids=str,
    )
    def test_fields(self, sdk: openai.OpenAI, field: str, given: dict[str, Any]) -> None:
        create: Any = sdk.audio.transcriptions.create
        with pytest.raises(openai.BadRequestError) as refused:
            create(file=named(ONE), model=MODEL, **given)
        assert refused.value.body["param"] == field  # pyright: ignore

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"this is no sound",
            ONE[:30],
            b"OggS" + bytes(60),
            wav(numpy.zeros(0, numpy.float32)),
            wav(numpy.zeros(20, numpy.float32)),
        ],
        ids=["nothing", "text", "cut wave", "cut ogg", "no samples", "too short"],
    )
    @pytest.mark.parametrize("is_streamed", [False, True])
    def test_files(self, sdk: openai.OpenAI, content: bytes, is_streamed: bool) -> None:
        file = ("clip.wav", io.BytesIO(content))
        with pytest.raises(openai.BadRequestError) as refused:
            list(
                sdk.audio.transcriptions.create(file=file, model=MODEL, stream=True)
                if is_streamed
                else [sdk.audio.transcriptions.create(file=file, model=MODEL)]
            )
        assert refused.value.code == "invalid_media"

    def test_no_file(self, account: httpx.Client) -> None:
        for path in (TRANSCRIPTIONS, TRANSLATIONS):
            answer = account.post(path, data={"model": MODEL}, files={"model_": b""})
            assert answer.status_code == 400
            answer = account.post(path, json={"model": MODEL})
            assert answer.json()["error"]["param"] == "file"

    def test_another_kind_of_model(self, account: httpx.Client) -> None:
        files = {"file": ONE}
        answer = account.post(TRANSCRIPTIONS, data={"model": "other"}, files=files)
        assert answer.json()["error"]["type"] == "EndpointNotSupportedError"
        body = {"model": MODEL, "inputs": "one"}
        answer = account.post("/v1/classifications/text", json=body)
        assert TRANSCRIPTIONS in answer.json()["error"]["message"]

    def test_a_wrong_key(self, account: httpx.Client) -> None:
        headers = {"authorization": "Bearer sk-wrong"}
        for path in (TRANSCRIPTIONS, TRANSLATIONS):
            answer = account.post(path, json={"model": MODEL}, headers=headers)
            assert answer.status_code == 401


def test_silence(sdk: openai.OpenAI) -> None:
    """The transcription of silence has the requested form."""
    file = ("silence.wav", wav(numpy.zeros(RATE, numpy.float32)))
    for form in ("json", "srt", "vtt", "verbose_json"):
        answer: Any = sdk.audio.transcriptions.create(file=file, model=MODEL, response_format=form)
        assert isinstance(answer if form in ("srt", "vtt") else answer.text, str)


def test_version_2_of_the_sdk(account: httpx.Client, text: str, tmp_path: Path) -> None:
    clip = tmp_path / "clip.wav"
    clip.write_bytes(ONE)
    script = f"""
file = open(sys.argv[1], "rb").read()
given = {{"file": ("a.wav", file), "model": {MODEL!r}}}
create = lambda **more: sdk.audio.transcriptions.create(**given, **more)
verbose = create(response_format="verbose_json", timestamp_granularities=["word"])
print(json.dumps([
    create().text, create(response_format="text"),
    [one.word for one in verbose.words],
    [event.type for event in create(stream=True)],
    sdk.audio.translations.create(**given).text,
]))
"""
    answer, plain, words, events, translated = sdk2.printed(script, account, str(clip))
    assert answer == plain.strip() == text
    assert words
    assert isinstance(translated, str)
    assert set(events[:-1]) == {"transcript.text.delta"}
    assert events[-1] == "transcript.text.done"
