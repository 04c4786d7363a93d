"""Transcription against the transformers pipeline, family by family."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from transformers.models.whisper import tokenization_whisper as library

from stoker.inference.openai.transcriptions import AudioTranslationRequest, TranscriptionRequest
from stoker.media.media import Media
from stoker.runtime.interface import Call
from tests.support.conversion import conversion_of
from tests.support.local import Local, RefusedError
from tests.support.media import sound, wav
from tests.support.recognition import (
    SHORT_S,
    hubert,
    moonshine,
    speech_to_text,
    stop_with_the_sound,
    wav2vec2,
    wav2vec2_bert,
    wav2vec2_layer,
    wavlm,
    whisper,
    whisper_english,
)

PIPELINE = "automatic-speech-recognition"
RATE = 16_000
SOUNDS = [sound(0, 0.4), sound(1, 0.25), sound(2, 0.25), sound(3, 0.25)]
FAMILIES = (whisper, whisper_english, wav2vec2, wav2vec2_layer, wav2vec2_bert, hubert, wavlm)
CONVERTED = (whisper, whisper_english)
"""Run with OpenVINO as well."""
tokenization_whisper: Any = library
_THEIRS: dict[tuple[str, bytes, str], Any] = {}


class Case:
    """A tiny model, served with an engine and in transformers' own pipeline."""

    def __init__(self, family: Any, folder: Path, engine: str = "torch") -> None:
        self.family = family.__name__
        transformers.set_seed(1)
        family(folder)
        self.local = Local(PIPELINE, folder, in_openvino=engine == "openvino")
        if engine == "openvino":
            self.local.adopt(conversion_of(folder, PIPELINE))
            # It does so behind a batch, and before the next.
            for _ in range(2):
                self.ours([SOUNDS[0]])
        assert self.local.engine == engine
        self.pipe: Any = transformers.pipeline(PIPELINE, model=str(folder), device="cpu")

    @property
    def is_whisper(self) -> bool:
        return self.family.startswith("whisper")

    @property
    def window_s(self) -> float:
        return SHORT_S if self.is_whisper else 30

    def is_long(self, samples: Any) -> bool:
        return len(samples) > self.window_s * RATE

    @property
    def end(self) -> int:
        return self.pipe.tokenizer.eos_token_id

    @property
    def first_timestamp(self) -> int:
        return self.pipe.model.generation_config.no_timestamps_token_id + 1

    def theirs(self, samples: Any, **options: Any) -> Any:
        """What transformers makes of it: once, for all tests and for both engines."""
        asked = (self.family, samples.tobytes(), repr(options))
        if asked not in _THEIRS:
            _THEIRS[asked] = self._theirs(samples, **options)
        return _THEIRS[asked]

    def _theirs(self, samples: Any, **options: Any) -> Any:
        if self.is_whisper:
            return self._generated(samples, **options)
        if self.is_long(samples):
            options["chunk_length_s"] = self.window_s
        return self.pipe(samples.copy(), **options)

    def _generated(
        self,
        samples: Any,
        *,
        prompt: str | None = None,
        return_timestamps: Any = False,
        generate: dict[str, Any] | None = None,
    ) -> Any:
        """Text and segments (start, end, tokens, words) of `generate`, sequential if it is long."""
        model, tokenizer = self.pipe.model, self.pipe.tokenizer
        options = {"num_beams": 1, **(generate or {})}
        is_timed = bool(return_timestamps) or self.is_long(samples)
        # The tiny models have few positions.
        begin = (3 if self.family == "whisper" else 1) + (not is_timed)
        if self.family == "whisper":
            options = {"task": "transcribe", **options}
        if prompt:
            options["prompt_ids"] = tokenizer.get_prompt_ids(prompt, return_tensors="pt")
            begin += len(options["prompt_ids"])
        if return_timestamps == "word":
            options["return_token_timestamps"] = True
        stop_with_the_sound(model, samples if is_timed else None)
        # A call that aligned words leaves the model with another way to attend.
        model.config._attn_implementation = "sdpa"
        (given,) = self.pipe.preprocess(samples.copy())
        given.pop("is_last")
        found = model.generate(
            **given,
            return_timestamps=is_timed,
            return_segments=True,
            **{"max_new_tokens": 40 - begin, **options},
        )["segments"][0]
        ends = len(samples) / RATE
        segments = [self._segment(one, ends) for one in found if "start" in one]
        text = "".join(one["text"] for one in segments)
        if not is_timed:
            tokens = [token for one in found if "start" in one for token in one["tokens"].tolist()]
            text = self.pipe.postprocess([{"tokens": torch.tensor([tokens])}])["text"]
        return {"text": text, "segments": [one for one in segments if one["text"].strip()]}

    def _segment(self, found: Any, ends: float) -> dict[str, Any]:
        tokenizer = self.pipe.tokenizer
        tokens: list[int] = found["tokens"].tolist()
        plain = [token for token in tokens if token < self.end]
        # A segment that starts with a time starts then, whatever `generate` makes of it.
        words: list[Any] = []
        if plain and "token_timestamps" in found:
            first, last = found["idxs"]
            times: list[float] = found["result"]["token_timestamps"].tolist()
            moved = float(found["token_timestamps"][0]) - times[first]
            spans = [
                (times[at - 1 if at > first or first > 3 else at] + moved, times[at] + moved)
                for at in range(first, last)
            ]
            kept = [one for token, one in zip(tokens, spans, strict=True) if token < self.end]
            words = tokenization_whisper._collate_word_timestamps(
                tokenizer, plain, kept, "english", False
            )
        return {
            "plain": plain,
            "text": tokenizer.decode(plain),
            "start": min(float(found["start"]), ends),
            "end": min(float(found["end"]), ends),
            "words": words,
        }

    def ours(self, sounds: Any, request: Any = TranscriptionRequest, **fields: Any) -> Any:
        """The answers to one request a sound, all of them in the queue together."""
        return [
            json.loads(content) if content[:1] == b"{" else content.decode()
            for content in self.local.answers([call(one, request, **fields) for one in sounds])
        ]


def call(samples: Any, request: Any = TranscriptionRequest, **fields: Any) -> Call:
    file = samples if isinstance(samples, Media) else Media("audio", content=wav(samples))
    body = request.model_validate({"file": file, **fields})
    return Call(
        task=PIPELINE,
        items=[body.file],
        parameters=body.parameters(),
        single=True,
        finishing=dict(body.finishing()),
        stream=body.is_streamed,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> Iterator[Callable[..., Case]]:
    """Makes a family's model and converts it, once: a conversion takes longer than most tests."""
    cases: dict[tuple[Any, str], Case] = {}

    def made(family: Any, engine: str = "torch") -> Case:
        if (family, engine) not in cases:
            cases[family, engine] = Case(family, tmp_path_factory.mktemp(family.__name__), engine)
        return cases[family, engine]

    yield made
    for case in cases.values():
        case.local.close()


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((family, "torch"), id=family.__name__) for family in FAMILIES),
        *(pytest.param((one, "openvino"), id=f"{one.__name__}-openvino") for one in CONVERTED),
    ],
)
def case(request: pytest.FixtureRequest, made: Callable[..., Case]) -> Case:
    return made(*request.param)


class TestParity:
    def test_together(self, case: Case) -> None:
        case.local.batches.clear()
        answers = case.ours(SOUNDS)
        assert max(case.local.batches) > 1
        assert any(answer["text"] for answer in answers)
        for samples, answer in zip(SOUNDS, answers, strict=True):
            assert answer["text"] == case.theirs(samples)["text"].strip()
            assert answer["usage"] == {"type": "duration", "seconds": len(samples) / RATE}

    def test_alone(self, case: Case) -> None:
        for samples in SOUNDS:
            assert case.ours([samples])[0]["text"] == case.theirs(samples)["text"].strip()

    def test_windows_of_long_sounds(self, case: Case) -> None:
        """Those of one request share a batch."""
        long = [sound(seed, case.window_s * 2.2) for seed in (5, 6)]
        case.local.batches.clear()
        answers = case.ours(long)
        assert max(case.local.batches) > 1
        for samples, answer in zip(long, answers, strict=True):
            assert answer["text"] == case.theirs(samples)["text"].strip()

    @pytest.mark.parametrize("seconds", [0.25, 2.2], ids=["short", "long"])
    def test_words(self, case: Case, seconds: float) -> None:
        samples = sound(7, seconds * (case.window_s if seconds > 1 else 1))
        fields = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
        (answer,) = case.ours([samples], **fields)
        theirs = case.theirs(samples, return_timestamps="word")
        if case.is_whisper:
            theirs["chunks"] = [word for one in theirs["segments"] for word in one["words"]]
        theirs = theirs["chunks"]
        assert "segments" not in answer
        assert [one["word"] for one in answer["words"]] == [one["text"].strip() for one in theirs]
        for one, their in zip(answer["words"], theirs, strict=True):
            end = len(samples) / RATE
            assert one["start"] == pytest.approx(min(their["timestamp"][0], end), abs=0.011)
            assert one["end"] == pytest.approx(min(their["timestamp"][1], end), abs=0.011)

    def test_stream(self, case: Case) -> None:
        for samples in (SOUNDS[0], sound(8, case.window_s * 2.2)):
            events = streamed(case, samples)
            assert [one["type"] for one in events[:-1]] == ["transcript.text.delta"] * (
                len(events) - 1
            )
            text = "".join(one["delta"] for one in events[:-1])
            assert events[-1]["type"] == "transcript.text.done"
            assert events[-1]["text"] == text
            usage = events[-1]["usage"]
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        (answer,) = case.ours([SOUNDS[0]])
        assert streamed(case, SOUNDS[0])[-1]["text"] == answer["text"]

    def test_probe(self, case: Case) -> None:
        assert len(case.local.forward([case.local.stages.probe(32)] * 2)) == 2


def streamed(case: Case, samples: Any, **fields: Any) -> list[Any]:
    (content,) = case.local.answers([call(samples, stream=True, **fields)])
    return [json.loads(one.removeprefix("data: ")) for one in content.decode().split("\n\n")[:-1]]


@pytest.fixture(scope="module")
def many(made: Callable[..., Case]) -> Case:
    return made(whisper)


@pytest.fixture(scope="module")
def english(made: Callable[..., Case]) -> Case:
    return made(whisper_english)


@pytest.fixture(scope="module")
def moon(made: Callable[..., Case]) -> Case:
    return made(moonshine)


@pytest.fixture(scope="module")
def pieces(made: Callable[..., Case]) -> Case:
    return made(speech_to_text)


@pytest.fixture(scope="module")
def letters(made: Callable[..., Case]) -> Case:
    return made(wav2vec2)


class TestMoonshine:
    def test_together(self, moon: Case) -> None:
        sounds = [*SOUNDS, sound(5, 32)]
        moon.local.batches.clear()
        answers = moon.ours(sounds)
        assert max(moon.local.batches) > 1
        assert any(answer["text"] for answer in answers)
        for samples, answer in zip(sounds, answers, strict=True):
            windows = (
                {"chunk_length_s": 30, "stride_length_s": 0} if len(samples) > 30 * RATE else {}
            )
            theirs = moon.pipe(samples.copy(), generate_kwargs={"num_beams": 1}, **windows)
            assert answer["text"] == theirs["text"].strip()

    def test_forms(self, moon: Case) -> None:
        (answer,) = moon.ours([SOUNDS[0]], response_format="verbose_json")
        (segment,) = answer["segments"]
        assert (segment["start"], segment["end"]) == (0, len(SOUNDS[0]) / RATE)
        assert streamed(moon, SOUNDS[0])[-1]["text"] == answer["text"] == segment["text"]

    def test_a_temperature_draws(self, moon: Case) -> None:
        drawn = {moon.ours([SOUNDS[0]], temperature=1.0)[0]["text"] for _ in range(4)}
        assert len(drawn) > 1


class TestSpeechToText:
    def test_together(self, pieces: Case) -> None:
        """By its own search, of three beams."""
        sounds = [*SOUNDS, sound(5, 32)]
        pieces.local.batches.clear()
        answers = pieces.ours(sounds)
        assert max(pieces.local.batches) > 1
        assert len({answer["text"] for answer in answers}) > 1
        for samples, answer in zip(sounds, answers, strict=True):
            assert answer["text"] == directly(pieces, samples)

    def test_forms(self, pieces: Case) -> None:
        (answer,) = pieces.ours([SOUNDS[0]], response_format="verbose_json")
        (segment,) = answer["segments"]
        assert (segment["start"], segment["end"]) == (0, len(SOUNDS[0]) / RATE)
        assert streamed(pieces, SOUNDS[0])[-1]["text"] == answer["text"] == segment["text"]

    def test_a_temperature_draws(self, pieces: Case) -> None:
        drawn = {pieces.ours([SOUNDS[0]], temperature=1.0)[0]["text"] for _ in range(4)}
        assert len(drawn) > 1

    def test_silence(self, pieces: Case) -> None:
        """Its features vary by nothing, and are divided by that."""
        silent = numpy.zeros(RATE, numpy.float32)
        (answer,) = pieces.ours([silent])
        with torch.inference_mode():
            tokens = pieces.pipe.model.generate(torch.zeros(1, 98, 16), max_new_tokens=64)
        read = pieces.pipe.tokenizer.decode(tokens[0], skip_special_tokens=True)
        assert answer["text"] == read.strip()


def directly(case: Case, samples: Any) -> str:
    """What a model of sequences makes of windows of 30 s, one behind the other."""
    texts: list[str] = []
    for begin in range(0, len(samples), 30 * RATE):
        window = samples[begin : begin + 30 * RATE]
        features = case.pipe.feature_extractor(window, sampling_rate=RATE, return_tensors="pt")
        with torch.inference_mode():
            tokens = case.pipe.model.generate(**features, max_new_tokens=64)
        texts.append(case.pipe.tokenizer.decode(tokens[0], skip_special_tokens=True))
    return "".join(texts).strip()


@pytest.mark.parametrize("family", [wav2vec2_bert, speech_to_text], ids=lambda one: one.__name__)
def test_a_recording_of_one_frame(made: Callable[..., Case], family: Any) -> None:
    """Its variance is not defined."""
    case = made(family)
    with pytest.raises(RefusedError, match="at least 560") as refused:
        case.ours([SOUNDS[0][:559]])
    assert refused.value.failure.param == "file"
    assert case.ours([SOUNDS[0][:560]])


class TestWhisper:
    @pytest.fixture(scope="class", params=["torch", "openvino"])
    def many(self, request: pytest.FixtureRequest, made: Callable[..., Case]) -> Case:
        return made(whisper, request.param)

    @pytest.mark.parametrize("language", ["de", "German", "en"])
    def test_language(self, many: Case, language: str) -> None:
        answers = many.ours(SOUNDS, language=language)
        for samples, answer in zip(SOUNDS, answers, strict=True):
            theirs = many.theirs(samples, generate={"language": language.lower()})
            assert answer["text"] == theirs["text"].strip()

    def test_translation(self, many: Case) -> None:
        answers = many.ours(SOUNDS, AudioTranslationRequest)
        for samples, answer in zip(SOUNDS, answers, strict=True):
            theirs = many.theirs(samples, generate={"task": "translate"})
            assert answer["text"] == theirs["text"].strip()

    def test_prompt(self, many: Case) -> None:
        for prompt in ("two", "one three zero one"):
            answers = many.ours(SOUNDS, prompt=prompt)
            for samples, answer in zip(SOUNDS, answers, strict=True):
                assert answer["text"] == many.theirs(samples, prompt=prompt)["text"].strip()

    def test_long_prompts_lose_their_beginning(self, many: Case) -> None:
        last = ["one two three zero"] * 4
        (given,) = many.ours([SOUNDS[0]], prompt=" ".join(["three"] * 40 + last))
        (short,) = many.ours([SOUNDS[0]], prompt=" ".join(["three", *["three"] * 20, *last]))
        assert given["text"] == short["text"]

    @pytest.mark.parametrize("seconds", [0.4, 4.4])
    def test_segments(self, many: Case, seconds: float) -> None:
        sounds = [sound(seed, seconds) for seed in range(4)]
        answers = many.ours(sounds, response_format="verbose_json")
        for samples, answer in zip(sounds, answers, strict=True):
            theirs = many.theirs(samples, return_timestamps=True)
            assert answer["text"] == theirs["text"].strip()
            given = [one["text"] for one in answer["segments"]]
            assert given == [one["text"] for one in theirs["segments"]]
            for one, their in zip(answer["segments"], theirs["segments"], strict=True):
                assert [one["start"], one["end"]] == pytest.approx([their["start"], their["end"]])
                assert one["avg_logprob"] < 0
                assert 0 <= one["no_speech_prob"] <= 1
            assert answer["language"] in ("english", "german")

    @pytest.mark.parametrize(
        "settings",
        [
            {"condition_on_prev_tokens": True},
            {"no_speech_threshold": 0.0, "logprob_threshold": -1.5},
            {"no_speech_threshold": 1.0, "logprob_threshold": -1.5},
            {"compression_ratio_threshold": 1.0, "condition_on_prev_tokens": True},
        ],
        ids=str,
    )
    def test_settings_of_the_model(
        self, many: Case, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # There must be room for the text before.
        settings = {"max_new_tokens": 12, **settings}
        for name, value in settings.items():
            monkeypatch.setattr(many.local.model.generation_config, name, value, raising=False)
        texts: set[str] = set()
        for seed in range(4):
            samples = sound(seed, 5.3)
            (answer,) = many.ours([samples], response_format="verbose_json", language="en")
            generate = {"language": "en", "temperature": 0.0, **settings}
            theirs = many.theirs(samples, return_timestamps=True, generate=generate)
            assert answer["text"] == theirs["text"].strip()
            texts.add(answer["text"])
        assert len(texts) > 1

    def test_a_list_of_temperatures(self, many: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next one is tried where a window is unlikely."""
        own = many.local.model.generation_config
        plain = many.ours([SOUNDS[0]], response_format="verbose_json")[0]["segments"]
        monkeypatch.setattr(own, "temperature", [0.0, 0.7], raising=False)
        for least, temperature in ((-1e9, 0.0), (0.0, 0.7)):
            monkeypatch.setattr(own, "logprob_threshold", least, raising=False)
            (answer,) = many.ours([SOUNDS[0]], response_format="verbose_json")
            temperatures = {round(one["temperature"], 3) for one in answer["segments"]}
            assert temperatures == {temperature}
            if not temperature:
                assert answer["segments"] == plain
        (answer,) = many.ours([SOUNDS[0]], response_format="verbose_json", temperature=0.3)
        assert {round(one["temperature"], 3) for one in answer["segments"]} == {0.3}

    def test_logprobs(self, many: Case) -> None:
        """The logarithms of what the model itself gives to each token, computed without a cache."""
        is_told = 0
        for samples in SOUNDS:
            drawn = _drawn_by_hand(many, samples)
            times = [token >= many.first_timestamp for token, _ in drawn]
            if any(one and next_one for one, next_one in pairwise(times)):
                continue  # A second pass follows.
            (answer,) = many.ours([samples], include=["logprobs"], language="en")
            words = [(token, logprob) for token, logprob in drawn if token < many.end]
            assert [one["logprob"] for one in answer["logprobs"]] == pytest.approx(
                [logprob for _, logprob in words], abs=1e-4
            )
            spelt = b"".join(bytes(one["bytes"]) for one in answer["logprobs"])
            assert spelt.decode(errors="replace").strip() == answer["text"]
            is_told += bool(words)
        assert is_told

    def test_logprobs_of_a_stream(self, many: Case) -> None:
        events = streamed(many, sound(9, 4.4), include=["logprobs"])
        told = [one for event in events[:-1] for one in event["logprobs"]]
        assert told == events[-1]["logprobs"]
        assert told

    def test_a_temperature_draws(self, many: Case) -> None:
        drawn = {many.ours([SOUNDS[0]], temperature=1.0)[0]["text"] for _ in range(6)}
        assert len(drawn) > 1


def _drawn_by_hand(case: Case, samples: Any) -> list[tuple[int, float]]:
    """Tokens of one pass in English, without times, each with its logarithm."""
    import torch

    features = next(case.pipe.preprocess(samples.copy()))["input_features"]
    ids = case.pipe.tokenizer.get_vocab()
    names = ("startoftranscript", "en", "transcribe", "notimestamps")
    tokens = [ids[f"<|{name}|>"] for name in names]
    found: list[tuple[int, float]] = []
    while len(tokens) < 40 and tokens[-1] != case.end:
        with torch.no_grad():
            model = case.pipe.model
            scores = model(features, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
        scores[[5, 6, *([] if found else [ids["Ġ"]])]] = -torch.inf
        token = int(scores.argmax())
        found.append((token, float(scores.log_softmax(-1)[token])))
        tokens.append(token)
    return found


@pytest.mark.parametrize(
    ("named", "field", "fields"),
    [
        ("many", "language", {"language": "klingon"}),
        ("many", "language", {"language": "zh"}),
        ("many", "prompt", {"prompt": "<|startoftranscript|>"}),
        ("english", "language", {"language": "en"}),
        ("english", "model", {"request": AudioTranslationRequest}),
        ("moon", "language", {"language": "en"}),
        (
            "moon",
            "timestamp_granularities",
            {"response_format": "verbose_json", "timestamp_granularities": ["word"]},
        ),
        ("letters", "language", {"language": "en"}),
        ("letters", "prompt", {"prompt": "one"}),
        ("letters", "temperature", {"temperature": 0.5}),
        ("letters", "include", {"include": ["logprobs"]}),
        ("letters", "model", {"request": AudioTranslationRequest}),
    ],
)
def test_what_a_model_cannot_honour(
    request: pytest.FixtureRequest, named: str, field: str, fields: dict[str, Any]
) -> None:
    case: Case = request.getfixturevalue(named)
    with pytest.raises(RefusedError) as refused:
        case.ours([SOUNDS[0]], **fields)
    assert refused.value.failure.code == "invalid_request"
    assert refused.value.failure.param == field


@pytest.mark.parametrize("content", [b"", b"no sound", b"RIFF....WAVE"], ids=["no", "text", "cut"])
def test_not_a_recording(letters: Case, content: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        letters.ours([Media("audio", content=content)])
    assert refused.value.failure.code == "invalid_media"
    assert refused.value.failure.param == "file"


def test_too_short(letters: Case) -> None:
    with pytest.raises(RefusedError, match="needs at least"):
        letters.ours([numpy.full(100, 0.1, numpy.float32)])
