"""Transcript of a recording, in the formats of OpenAI's clients and of players."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NotRequired, cast

from typing_extensions import TypedDict

from stoker.media.timeline import Timeline
from stoker.wire import sse

TOKEN_S = 0.02
"""Seconds of sound that count as one token."""
FRAMES_A_SECOND = 100
"""Rate of Whisper's feature frames, the unit of `Segment.seek`."""


class Segment(TypedDict):
    """A stretch of speech. Times are in seconds from the recording's start."""

    start: float
    end: float
    text: str
    tokens: list[int]
    seek: int
    """Start of its window, in frames of 10 ms."""
    avg_logprob: float
    """Mean log probability of the window's tokens."""
    no_speech_prob: float
    """Probability that the window contains no speech. 0.0 if the model returns none."""
    temperature: NotRequired[float]
    """Temperature of the window's transcription. If missing, the request's."""


class Word(TypedDict):
    word: str
    start: float
    end: float


class Logprob(TypedDict):
    token: str
    bytes: list[int]
    logprob: float


class Transcript(TypedDict):
    text: str
    language: str
    """English name in lower case. Empty if the model has only one language and does not name it."""
    duration: float
    """Duration in seconds from the start of the recording's container to the end of its sound."""
    sound_s: float
    """Duration of the sound in seconds, without gaps of the container."""
    output_tokens: int
    segments: NotRequired[list[Segment]]
    words: NotRequired[list[Word]]
    logprobs: NotRequired[list[Logprob]]


class Finishing(TypedDict):
    """Options of a request for its answer."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"]
    task: Literal["transcribe", "translate"]
    temperature: float
    granularities: list[Literal["word", "segment"]]
    model: NotRequired[str]


def played(transcript: Transcript, timeline: Timeline) -> Transcript:
    """Returns a transcript with times in the recording's container."""
    spoken: Sequence[Segment | Word] = [
        *transcript.get("segments", ()),
        *transcript.get("words", ()),
    ]
    for part in spoken:
        part["start"], part["end"] = timeline.begin(part["start"]), timeline.end(part["end"])
    for segment in transcript.get("segments", ()):
        seek_s = timeline.begin(segment["seek"] / FRAMES_A_SECOND)
        segment["seek"] = round(seek_s * FRAMES_A_SECOND)
    transcript["duration"] = timeline.end(transcript["sound_s"])
    return transcript


def written(transcript: Transcript, finishing: Finishing) -> Any:
    """Returns the complete answer: bytes of a text, or an object for JSON."""
    return _FORMS[finishing["response_format"]](transcript, finishing)


def delta(text: str, logprobs: Sequence[Logprob] | None = None) -> bytes:
    """Returns a stream event with the next part of the transcript."""
    event: dict[str, Any] = {"type": "transcript.text.delta", "delta": text}
    return sse.event(event if logprobs is None else event | {"logprobs": logprobs})


def done(transcript: Transcript) -> bytes:
    """Returns the last event of a stream: the complete transcript and its usage."""
    audio, written_tokens = round(transcript["sound_s"] / TOKEN_S), transcript["output_tokens"]
    usage = {
        "type": "tokens",
        "input_tokens": audio,
        "input_token_details": {"audio_tokens": audio, "text_tokens": 0},
        "output_tokens": written_tokens,
        "total_tokens": audio + written_tokens,
    }
    event = {"type": "transcript.text.done", "text": transcript["text"], "usage": usage}
    logprobs = transcript.get("logprobs")
    return sse.event(event if logprobs is None else event | {"logprobs": logprobs})


def compression_ratio(text: str) -> float:
    """Returns the compression ratio of a text. Repetitive loops have a high ratio."""
    content = text.encode()
    return len(content) / len(zlib.compress(content))


def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": transcript["sound_s"]}


def _json(transcript: Transcript, finishing: Finishing) -> dict[str, Any]:
    answer = {"text": transcript["text"], "usage": _usage(transcript)}
    return answer | ({"logprobs": transcript["logprobs"]} if "logprobs" in transcript else {})


def _verbose(transcript: Transcript, finishing: Finishing) -> dict[str, Any]:
    translated = finishing["task"] == "translate"
    answer: dict[str, Any] = {
        "task": finishing["task"],
        "language": "english" if translated else transcript["language"],
        "duration": transcript["duration"],
        "text": transcript["text"],
    }
    if "word" in finishing["granularities"]:
        answer["words"] = transcript.get("words", [])
    if "segment" in finishing["granularities"]:
        answer["segments"] = [
            {
                "id": at,
                "temperature": finishing["temperature"],
                **segment,
                "compression_ratio": compression_ratio(segment["text"]),
            }
            for at, segment in enumerate(transcript.get("segments", []))
        ]
    return answer | {"usage": _usage(transcript)}


def _text(transcript: Transcript, finishing: Finishing) -> bytes:
    return f"{transcript['text']}\n".encode()


def _srt(transcript: Transcript, finishing: Finishing) -> bytes:
    """Returns SubRip: numbered cues, with milliseconds after a comma."""
    cues = [
        f"{number}\n{times}\n{text}\n\n"
        for number, (times, text) in enumerate(_cues(transcript, mark=","), 1)
    ]
    return "".join(cues).encode()


def _vtt(transcript: Transcript, finishing: Finishing) -> bytes:
    """Returns WebVTT (https://www.w3.org/TR/webvtt1/)."""
    cues = [f"{times}\n{text}\n\n" for times, text in _cues(transcript, mark=".")]
    return f"WEBVTT\n\n{''.join(cues)}".encode()


def _cues(transcript: Transcript, mark: str) -> list[tuple[str, str]]:
    """Returns times and text of each segment."""
    return [
        (
            f"{_clock(segment['start'], mark)} --> {_clock(segment['end'], mark)}",
            # An arrow would turn the text into a line of times, and an empty line would end the
            # cue.
            " ".join(segment["text"].replace("-->", "->").split()),
        )
        for segment in transcript.get("segments", [])
    ]


def _clock(seconds: float, mark: str) -> str:
    """Formats seconds as `00:01:02.345`, with `mark` before the milliseconds."""
    rest, milliseconds = divmod(round(max(0.0, seconds) * 1000), 1000)
    minutes, second = divmod(rest, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}{mark}{milliseconds:03d}"


_FORMS: Mapping[str, Callable[[Transcript, Finishing], Any]] = {
    "json": _json,
    "text": _text,
    "srt": _srt,
    "verbose_json": _verbose,
    "vtt": _vtt,
}
TIMED = ("srt", "vtt", "verbose_json")
"""Formats that show times."""


def as_finishing(given: Mapping[str, Any]) -> Finishing:
    """Returns a request's options after they were sent in a message."""
    return cast("Finishing", given)
