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
"""Families that are also tested with OpenVINO."""
tokenization_whisper: Any = library
_THEIRS: dict[tuple[str, bytes, str], Any] = {}


class Case:
    """Tiny model, served with an engine and loaded in transformers' own pipeline."""

    def __init__(self, family: Any, folder: Path, engine: str = "torch") -> None:
        self.family = family.__name__
        transformers.set_seed(1)
        family(folder)
        self.local = Local(PIPELINE, folder, in_openvino=engine == "openvino")
        if engine == "openvino":
            self.local.adopt(conversion_of(folder, PIPELINE))
            # The conversion is adopted after one batch and before the next.
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
        """Returns the result of transformers, computed once for all tests and both engines."""
        key = (self.family, samples.tobytes(), repr(options))
        if key not in _THEIRS:
            _THEIRS[key] = self._theirs(samples, **options)
        return _THEIRS[key]

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
        """Returns text and segments (start, end, tokens, words) of `generate`, which is sequential
        for long sounds.
        """
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
        # A call that aligned words changes the model's attention implementation.
        model.config._attn_implementation = "sdpa"
        (inputs,) = self.pipe.preprocess(samples.copy())
        inputs.pop("is_last")
        outputs = model.generate(
            **inputs,
            return_timestamps=is_timed,
            return_segments=True,
            **{"max_new_tokens": 40 - begin, **options},
        )["segments"][0]
        ends = len(samples) / RATE
        segments = [self._segment(segment, ends) for segment in outputs if "start" in segment]
        text = "".join(segment["text"] for segment in segments)
        if not is_timed:
            tokens = [
                token
                for segment in outputs
                if "start" in segment
                for token in segment["tokens"].tolist()
            ]
            text = self.pipe.postprocess([{"tokens": torch.tensor([tokens])}])["text"]
        return {
            "text": text,
            "segments": [segment for segment in segments if segment["text"].strip()],
        }

    def _segment(self, found: Any, ends: float) -> dict[str, Any]:
        tokenizer = self.pipe.tokenizer
        tokens: list[int] = found["tokens"].tolist()
        plain = [token for token in tokens if token < self.end]
        # A segment that starts with a timestamp starts then, even if `generate` reports another
        # time.
        words: list[Any] = []
        if plain and "token_timestamps" in found:
            first, last = found["idxs"]
            times: list[float] = found["result"]["token_timestamps"].tolist()
            moved = float(found["token_timestamps"][0]) - times[first]
            spans = [
                (times[at - 1 if at > first or first > 3 else at] + moved, times[at] + moved)
                for at in range(first, last)
            ]
            kept_spans = [
                span for token, span in zip(tokens, spans, strict=True) if token < self.end
            ]
            words = tokenization_whisper._collate_word_timestamps(
                tokenizer, plain, kept_spans, "english", False
            )
        return {
            "plain": plain,
            "text": tokenizer.decode(plain),
            "start": min(float(found["start"]), ends),
            "end": min(float(found["end"]), ends),
            "words": words,
        }

    def ours(self, sounds: Any, request: Any = TranscriptionRequest, **fields: Any) -> Any:
        """Returns the answers to one request per sound. All requests are queued together."""
        return [
            json.loads(content) if content[:1] == b"{" else content.decode()
            for content in self.local.answers(
                [call(samples, request, **fields) for samples in sounds]
            )
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
    """Yields a function that makes and converts a family's model once. A conversion takes longer
    than most tests.
    """
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
        *(
            pytest.param((builder, "openvino"), id=f"{builder.__name__}-openvino")
            for builder in CONVERTED
        ),
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
        """Windows of one request share a batch."""
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
            theirs["chunks"] = [word for entry in theirs["segments"] for word in entry["words"]]
        theirs = theirs["chunks"]
        assert "segments" not in answer
        assert [entry["word"] for entry in answer["words"]] == [
            entry["text"].strip() for entry in theirs
        ]
        for entry, their in zip(answer["words"], theirs, strict=True):
            end = len(samples) / RATE
            assert entry["start"] == pytest.approx(min(their["timestamp"][0], end), abs=0.011)
            assert entry["end"] == pytest.approx(min(their["timestamp"][1], end), abs=0.011)

    def test_stream(self, case: Case) -> None:
        for samples in (SOUNDS[0], sound(8, case.window_s * 2.2)):
            events = streamed(case, samples)
            assert [event["type"] for event in events[:-1]] == ["transcript.text.delta"] * (
                len(events) - 1
            )
            text = "".join(event["delta"] for event in events[:-1])
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
    return [
        json.loads(event.removeprefix("data: ")) for event in content.decode().split("\n\n")[:-1]
    ]


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
        """Batched sounds are transcribed with the model's own search, which uses three beams."""
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
        """Silence works, although the features are divided by their variance, which is zero."""
        silent = numpy.zeros(RATE, numpy.float32)
        (answer,) = pieces.ours([silent])
        with torch.inference_mode():
            tokens = pieces.pipe.model.generate(torch.zeros(1, 98, 16), max_new_tokens=64)
        read = pieces.pipe.tokenizer.decode(tokens[0], skip_special_tokens=True)
        assert answer["text"] == read.strip()


def directly(case: Case, samples: Any) -> str:
    """Returns the text of a sequence-to-sequence model for consecutive windows of 30 s."""
    texts: list[str] = []
    for begin in range(0, len(samples), 30 * RATE):
        window = samples[begin : begin + 30 * RATE]
        features = case.pipe.feature_extractor(window, sampling_rate=RATE, return_tensors="pt")
        with torch.inference_mode():
            tokens = case.pipe.model.generate(**features, max_new_tokens=64)
        texts.append(case.pipe.tokenizer.decode(tokens[0], skip_special_tokens=True))
    return "".join(texts).strip()


@pytest.mark.parametrize(
    "family", [wav2vec2_bert, speech_to_text], ids=lambda builder: builder.__name__
)
def test_a_recording_of_one_frame(made: Callable[..., Case], family: Any) -> None:
    """A recording of one frame is rejected, because its variance is undefined."""
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
        (answer,) = many.ours([SOUNDS[0]], prompt=" ".join(["three"] * 40 + last))
        (short,) = many.ours([SOUNDS[0]], prompt=" ".join(["three", *["three"] * 20, *last]))
        assert answer["text"] == short["text"]

    @pytest.mark.parametrize("seconds", [0.4, 4.4])
    def test_segments(self, many: Case, seconds: float) -> None:
        sounds = [sound(seed, seconds) for seed in range(4)]
        answers = many.ours(sounds, response_format="verbose_json")
        for samples, answer in zip(sounds, answers, strict=True):
            theirs = many.theirs(samples, return_timestamps=True)
            assert answer["text"] == theirs["text"].strip()
            texts = [segment["text"] for segment in answer["segments"]]
            assert texts == [segment["text"] for segment in theirs["segments"]]
            for segment, their in zip(answer["segments"], theirs["segments"], strict=True):
                assert [segment["start"], segment["end"]] == pytest.approx(
                    [their["start"], their["end"]]
                )
                assert segment["avg_logprob"] < 0
                assert 0 <= segment["no_speech_prob"] <= 1
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
        # The limit leaves room for the previous text.
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
        """The next temperature is tried if the probability of a window is low."""
        config = many.local.model.generation_config
        plain = many.ours([SOUNDS[0]], response_format="verbose_json")[0]["segments"]
        monkeypatch.setattr(config, "temperature", [0.0, 0.7], raising=False)
        for least, temperature in ((-1e9, 0.0), (0.0, 0.7)):
            monkeypatch.setattr(config, "logprob_threshold", least, raising=False)
            (answer,) = many.ours([SOUNDS[0]], response_format="verbose_json")
            temperatures = {round(segment["temperature"], 3) for segment in answer["segments"]}
            assert temperatures == {temperature}
            if not temperature:
                assert answer["segments"] == plain
        (answer,) = many.ours([SOUNDS[0]], response_format="verbose_json", temperature=0.3)
        assert {round(segment["temperature"], 3) for segment in answer["segments"]} == {0.3}

    def test_logprobs(self, many: Case) -> None:
        """The log probabilities match those that the model itself computes for each token without a
        cache.
        """
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
        tokens = [token for event in events[:-1] for token in event["logprobs"]]
        assert tokens == events[-1]["logprobs"]
        assert tokens

    def test_a_temperature_draws(self, many: Case) -> None:
        drawn = {many.ours([SOUNDS[0]], temperature=1.0)[0]["text"] for _ in range(6)}
        assert len(drawn) > 1


def _drawn_by_hand(case: Case, samples: Any) -> list[tuple[int, float]]:
    """Returns the tokens of one pass in English, without timestamps, each with its log
    probability.
    """
    import torch

    features = next(case.pipe.preprocess(samples.copy()))["input_features"]
    ids = case.pipe.tokenizer.get_vocab()
    names = ("startoftranscript", "en", "transcribe", "notimestamps")
    tokens = [ids[f"<|{name}|>"] for name in names]
    drawn: list[tuple[int, float]] = []
    while len(tokens) < 40 and tokens[-1] != case.end:
        with torch.no_grad():
            model = case.pipe.model
            scores = model(features, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
        scores[[5, 6, *([] if drawn else [ids["Ġ"]])]] = -torch.inf
        token = int(scores.argmax())
        drawn.append((token, float(scores.log_softmax(-1)[token])))
        tokens.append(token)
    return drawn


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
