"""Long recordings with pauses: each phrase is transcribed once, with correct times."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stoker.media.media import Media
from stoker.models.stages.recognition.silences import Silences, Span
from tests.support import recognition
from tests.support.containers import recorded
from tests.support.local import Local
from tools import pauses
from tools.demo_models.speech import RATE
from tools.pauses import PIPELINE

WINDOW_S = 4.0
"""Window of the demo's transcriber in seconds."""


def noise(seconds: float, loudness: float, seed: int = 0) -> Any:
    return loudness * np.random.default_rng(seed).standard_normal(round(seconds * RATE))


def track(*parts: Any) -> Any:
    return np.concatenate(parts).astype(np.float32)


def edges(spans: Any) -> list[float]:
    """Returns the starts and ends of spans in seconds."""
    return [edge / RATE for span in spans for edge in span]


class TestSilences:
    def test_parts_of_a_recording(self) -> None:
        sound = track(*(noise(3, level, at) for at, level in enumerate((0.1, 1e-4) * 3)))
        silences = Silences.of(sound, RATE)
        assert edges(silences.spans) == pytest.approx([3, 6, 9, 12, 15, 18], abs=0.03)
        assert edges(silences.stretches(30)) == pytest.approx([0, 15.25], abs=0.03)
        parts = [0, 3.25, 5.75, 9.25, 11.75, 15.25]
        assert edges(silences.stretches(6)) == pytest.approx(parts, abs=0.03)

    @pytest.mark.parametrize(
        "sound",
        [
            track(noise(40, 0.1)),
            track(noise(20, 0.01), noise(20, 0.03)),
            track(np.zeros(40 * RATE)),
            track(pauses.music(40 * RATE, np.random.default_rng(1))),
            track(noise(0.01, 0.1)),
        ],
        ids=["noise", "two noises", "zeros", "music", "short"],
    )
    def test_nothing_to_cut_at(self, sound: Any) -> None:
        assert Silences.of(sound, RATE).stretches(30) == [Span(0, len(sound))]

    def test_quiet_speech_is_kept(self) -> None:
        """Quiet speech is kept, although it is quieter than other speech and than noise elsewhere
        in the recording.
        """
        loud, quiet = noise(5, 0.3), noise(5, 0.002)
        still = noise(8, 1e-5)
        sound = track(loud, still, quiet, still, noise(60, 0.02, 3))
        parts = Silences.of(sound, RATE).stretches(30)
        assert [part.begin / RATE for part in parts] == pytest.approx([0, 12.75, 25.75], abs=0.03)

    def test_all_sound_is_in_a_part(self) -> None:
        for seed in range(20):
            draw = np.random.default_rng(seed)
            lengths = draw.uniform(0.1, 9, 24)
            levels = [draw.choice([1e-4, 0.02, 0.2]) for _ in lengths]
            kinds = zip(lengths, levels, strict=True)
            sound = track(*(noise(length, level, seed) for length, level in kinds))
            parts = Silences.of(sound, RATE).stretches(12)
            assert all(earlier.end <= other.begin for earlier, other in pairwise(parts))
            covered = np.zeros(len(sound), bool)
            for part in parts:
                covered[part.begin : part.end] = True
            # Frames of 20 ms.
            loud = np.abs(sound) > 0.005
            assert not (loud & ~covered).any()

    def test_times_are_moved_to_the_sound(self) -> None:
        silences = Silences([Span(2 * RATE, 10 * RATE)], 12 * RATE, RATE)
        assert silences.snapped(3.0, 11.0) == (9.9, 11.0)
        assert silences.snapped(1.0, 9.0) == (1.0, 2.1)
        assert silences.snapped(1.8, 2.2) == (1.8, 2.2)
        # The first span lies within one silence, the second extends beyond the recording.
        assert silences.snapped(3.0, 4.0) == (3.0, 4.0)
        assert silences.snapped(11.0, 14.0) == (11.0, 12.0)


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    made = Local(PIPELINE, pauses.MODEL)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pipe() -> Any:
    return transformers.pipeline(PIPELINE, model=str(pauses.MODEL), device="cpu")


def answer(local: Local, samples: Any, **fields: Any) -> Any:
    return json.loads(local.answers([pauses.call(samples, **fields)])[0])


class TestWhisper:
    @pytest.mark.parametrize(
        ("pause_s", "kind"),
        [(1, "silence"), (2, "quiet noise"), (5, "noise"), (20, "quiet noise"), (60, "silence")],
    )
    def test_said_and_heard(self, local: Local, pipe: Any, pause_s: int, kind: str) -> None:
        made = pauses.recording(60, pause_s, kind)
        transcript = answer(local, made.samples)
        errors = pauses.word_errors(transcript["text"], made)
        assert errors < 0.2
        assert errors <= pauses.word_errors(pauses.sequential(pipe, made.samples), made)
        if pause_s > 1:
            starts, ends = pauses.offsets(transcript["segments"], made)
            assert max(*starts, *ends) <= pauses.CLOSE_S
        assert all(segment["end"] <= transcript["duration"] for segment in transcript["segments"])
        assert answer(local, made.samples, response_format="json")["text"] == transcript["text"]

    def test_the_same_sentence_twice(self, local: Local) -> None:
        """Windows are not merged at text that both contain."""
        (samples, text), _ = pauses.clips()[3:5]
        (alone,) = {answer(local, samples)["text"]}
        for gap in (2, 7, 30):
            parts = [samples, np.zeros(gap * RATE)] * 3
            transcript = answer(local, track(*parts))
            assert transcript["text"] == " ".join([alone] * 3)
        assert text

    def test_stretches_share_batches(self, local: Local) -> None:
        made = [pauses.recording(30, 5, "quiet noise", seed) for seed in range(2)]
        local.batches.clear()
        local.answers([pauses.call(recording.samples) for recording in made])
        assert max(local.batches) > sum(len(recording.said) for recording in made) // 2

    def test_the_first_window_tells_the_language(
        self, local: Local, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All windows are transcribed in the language of the first one, because a short window may
        be mistaken for any language.
        """
        clip = (pauses.DEMO / "media" / "spoken" / "de-37586.ogg").read_bytes()
        german = pauses.audio.decode(clip, RATE, pauses.MediaLimits())
        english = pauses.clips()[3][0]
        run, requested = local.stages.run, list[Any]()

        def spied(model: Any, call: Any, batch: Any) -> Any:
            requested.append(call.language)
            return run(model, call, batch)

        monkeypatch.setattr(local.stages, "run", spied)
        languages = local.model.generation_config.lang_to_id
        for first, second, name in ((german, english, "de"), (english, german, "en")):
            requested.clear()
            samples = track(first, np.zeros(5 * RATE), second, np.zeros(5 * RATE), second)
            transcript = answer(local, samples, language=None)
            assert transcript["language"] == {"de": "german", "en": "english"}[name]
            assert requested[0] is None
            assert set(requested[1:]) == {languages[f"<|{name}|>"]}

    def test_stream(self, local: Local) -> None:
        made = pauses.recording(40, 3, "quiet noise")
        fields = {"response_format": "json"}
        whole = answer(local, made.samples, **fields)["text"]
        (content,) = local.answers([pauses.call(made.samples, stream=True, **fields)])
        lines = content.decode().split("\n\n")[:-1]
        events = [json.loads(event.removeprefix("data: ")) for event in lines]
        assert len(events) > 3
        assert "".join(event["delta"] for event in events[:-1]) == whole == events[-1]["text"]

    @pytest.mark.parametrize("container", ["mp4", "webm"])
    def test_times_of_the_container(self, local: Local, container: str) -> None:
        """Times are correct for a clip that begins 4.94 s after the video, and again after a
        gap.
        """
        samples, text = pauses.clips()[5]
        seconds = len(samples) // (RATE // 50) / 50
        high = np.repeat(samples[: round(seconds * RATE)], 3)
        spans = [(4.94, 4.94 + seconds), (30.0, 30.0 + seconds)]
        content = recorded(container, spans, video_s=0, sound=np.concatenate([high, high]))
        transcript = answer(local, samples, file=Media("audio", content=content))
        starts = [one["start"] for one in transcript["segments"]]
        assert transcript["text"] == f"{text} {text}"
        assert min(abs(one - 4.94) for one in starts) < pauses.CLOSE_S
        assert min(abs(one - 30.0) for one in starts) < pauses.CLOSE_S
        assert transcript["duration"] == pytest.approx(spans[1][1], abs=0.1)
        assert transcript["usage"]["seconds"] == pytest.approx(2 * seconds, abs=0.1)
        form = {"response_format": "srt", "file": Media("audio", content=content)}
        (subtitles,) = local.answers([pauses.call(samples, **form)])
        assert subtitles.startswith((b"1\n00:00:04,", b"1\n00:00:05,"))
        assert b"\n00:00:30," in subtitles

    def test_words_are_within_what_is_said(self, local: Local) -> None:
        made = pauses.recording(40, 5, "quiet noise")
        transcript = answer(local, made.samples, timestamp_granularities=["word"])
        assert transcript["words"]
        # The first word of a window begins with the window, because the clip itself contains noise.
        for word in transcript["words"]:
            assert any(
                phrase.start - 0.75 <= word["start"] <= word["end"] <= phrase.end + pauses.CLOSE_S
                for phrase in made.said
            )


TONES = dict(zip("etaoin", (400, 800, 1300, 1900, 2600, 3400), strict=True))


class TestLetters:
    """A model that transcribes tones as letters, and also noise that is loud enough.

    The model normalizes its input, as such models do. Noise alone therefore becomes loud.
    """

    @pytest.fixture(scope="class")
    def local(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
        folder = tmp_path_factory.mktemp("letters")
        recognition.wav2vec2(folder)
        local = Local(PIPELINE, folder)
        local.model.forward = _hearing(local.model, local.model.forward)
        yield local
        local.close()

    @pytest.mark.parametrize("pause_s", [0.7, 3, 20, 60])
    def test_said_and_heard(self, local: Local, pause_s: float) -> None:
        draw = np.random.default_rng(round(pause_s))
        words: list[tuple[str, float]] = []
        parts: list[Any] = []
        at = 0.0
        while at < 100:
            word = "".join(draw.choice(list(TONES), 4))
            parts.append(_spoken(word))
            words.append((word, at))
            pause = pause_s * draw.uniform(0.9, 1.1)
            parts.append(np.zeros(round(pause * RATE)))
            at += (len(parts[-2]) + len(parts[-1])) / RATE
        sound = track(*parts)
        sound += noise(len(sound) / RATE, 1e-4)[: len(sound)].astype(np.float32)
        request = pauses.call(sound, language=None)
        transcript = json.loads(local.answers([request])[0])
        assert transcript["text"] == " ".join(word for word, _ in words)
        starts = [segment["start"] for segment in transcript["segments"]]
        expected = [start for _, start in words]
        if pause_s > 1:
            assert starts == pytest.approx(expected, abs=0.1)
        assert transcript["segments"][-1]["end"] <= transcript["duration"]


def _spoken(word: str) -> Any:
    """Returns the sound of a word: one tone per letter, each followed by a gap."""
    times = np.arange(RATE // 10) / RATE
    gap = np.zeros(RATE // 20)
    return np.concatenate(
        [part for letter in word for part in (0.3 * np.sin(2 * np.pi * TONES[letter] * times), gap)]
    )


def _hearing(model: Any, forward: Any) -> Any:
    """Returns a forward pass that writes the letter of each frame's loudest tone, and spaces in
    silence.
    """
    letters = {frequency: recognition.LETTERS.index(name) for name, frequency in TONES.items()}
    blank, space = 0, recognition.LETTERS.index("|")

    def heard(input_values: Any, **_: Any) -> Any:
        size = int(model._get_feat_extract_output_lengths(torch.tensor(input_values.shape[1])))
        rows = []
        for samples in input_values.numpy():
            tokens = [blank] * size
            quiet = 0
            for at in range(size):
                frame = samples[320 * at : 320 * at + 320]
                quiet = 0 if np.sqrt((frame**2).mean()) > 0.5 else quiet + 1
                if quiet == 0:
                    spectrum = np.abs(np.fft.rfft(frame))
                    loudest = 50 * int(spectrum.argmax())
                    tokens[at] = letters[min(letters, key=lambda one: abs(one - loudest))]
                elif quiet == 10:
                    tokens[at] = space
            # The end of a tone that fills only part of a frame is not a letter.
            whole = [
                one if one in (tokens[at - 1], *tokens[at + 1 : at + 2], space) else blank
                for at, one in enumerate(tokens)
            ]
            rows.append(torch.nn.functional.one_hot(torch.tensor(whole), len(recognition.LETTERS)))
        return transformers.modeling_outputs.CausalLMOutput(logits=10.0 * torch.stack(rows))

    return heard
