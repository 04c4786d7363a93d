"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: text of recordings."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, Field, model_validator

from stoker.inference.openai import hub
from stoker.inference.openai.sampling import ModelRequest
from stoker.inference.operation import (
    EVENTS,
    JSON,
    Answer,
    Operation,
    StreamedAnswer,
    WholeAnswer,
)
from stoker.inference.session import CallSession
from stoker.media.media import Media
from stoker.models.stages.generating import MIN_TEMPERATURE
from stoker.models.stages.recognition.transcripts import TIMED, Finishing
from stoker.models.tasks.automatic_speech_recognition import PIPELINE, TRANSCRIPTIONS, TRANSLATIONS
from stoker.models.tasks.base import refusal
from stoker.models.tasks.inputs import Audio
from stoker.models.tasks.service_tier import TieredRequest
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.interface import Call

TEXT, VTT = "text/plain", "text/vtt"
_TYPES = {"text": TEXT, "srt": TEXT, "vtt": VTT}
MAX_PROMPT_CHARS = 8192
_VAD = "chunking_strategy["

Granularity = Literal["word", "segment"]


def _temperature(value: float) -> float:
    if 0 < value < MIN_TEMPERATURE:
        raise ValueError(f"must be 0, or at least {MIN_TEMPERATURE:f}")
    return value


class AudioTranslationRequest(TieredRequest, ModelRequest):
    file: Audio
    prompt: str | None = Field(
        default=None,
        max_length=MAX_PROMPT_CHARS,
        description=(
            "Preceding text, or text in the desired style; its end is used. For Whisper models."
        ),
    )
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = Field(
        default="json", description="`srt` and `vtt` are subtitles."
    )
    temperature: Annotated[float, AfterValidator(_temperature)] = Field(
        default=0.0,
        ge=0,
        le=1,
        description="0: the likeliest words. Above 0: words drawn at random.",
    )

    endpoint = "translations"
    task: ClassVar[Literal["transcribe", "translate"]] = "translate"
    refused: ClassVar[dict[str, str]] = {}
    """Maps known fields that are not supported here to the reason."""

    @model_validator(mode="before")
    @classmethod
    def _honoured(cls, data: Any) -> Any:
        body = hub.unnested(data, "file", cls.model_fields, cls.refused)
        fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
        for name, why in cls.refused.items():
            if fields.get(name) is not None:
                raise refusal(why, name)
        # OpenAI's client sends an object in a form field by field.
        if any(name.startswith(_VAD) for name in fields):
            raise refusal(_ONLY_AUTO, "chunking_strategy")
        return cast("Any", body)

    @property
    def is_streamed(self) -> bool:
        return False

    def media(self) -> Iterator[tuple[str, Media]]:
        yield "file", self.file

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters for the replica's stages, in addition to the recording."""
        return {
            "task": self.task,
            "prompt": self.prompt,
            "temperature": self.temperature,
            "timed": self.response_format in TIMED,
        }

    def finishing(self) -> Finishing:
        return {
            "response_format": self.response_format,
            "task": self.task,
            "temperature": self.temperature,
            "granularities": ["segment"],
        }


_ONLY_AUTO = "must be 'auto': recordings are cut at silences, which cannot be configured"


class TranscriptionRequest(AudioTranslationRequest):
    language: str | None = Field(
        default=None,
        min_length=2,
        max_length=32,
        description="Spoken language, such as `en`. Default: Whisper models detect it.",
    )
    chunking_strategy: Literal["auto"] | None = Field(
        default=None, description="Long recordings are always cut at silences."
    )
    include: list[Literal["logprobs"]] = Field(
        default=[],
        max_length=8,
        description="`logprobs`: log probabilities of each token. With `json` only.",
    )
    timestamp_granularities: list[Granularity] = Field(
        default=["segment"], max_length=8, description="With `verbose_json` only."
    )
    stream: bool | None = Field(
        default=None, description="Answer in server-sent events, window by window; `json` only."
    )

    endpoint = "transcriptions"
    task: ClassVar[Literal["transcribe", "translate"]] = "transcribe"
    refused: ClassVar[dict[str, str]] = {
        "keywords": "is not supported. Put the words into 'prompt'",
        "languages": "is not supported. Name one 'language' or none",
        "known_speaker_names": "is not supported. Speakers are not distinguished",
        "known_speaker_references": "is not supported. Speakers are not distinguished",
    }

    @model_validator(mode="after")
    def _fits(self) -> Self:
        fields_set, form = self.model_fields_set, self.response_format
        if "timestamp_granularities" in fields_set and form != "verbose_json":
            raise refusal("needs 'response_format': 'verbose_json'", "timestamp_granularities")
        if self.include and form != "json":
            raise refusal("needs 'response_format': 'json'", "include")
        if self.stream and form != "json":
            raise refusal("must be 'json' for a stream", "response_format")
        return self

    @property
    def is_streamed(self) -> bool:
        return bool(self.stream)

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | {
            "language": self.language,
            "logprobs": bool(self.include),
            "words": "word" in self.timestamp_granularities,
        }

    def finishing(self) -> Finishing:
        return {**super().finishing(), "granularities": self.timestamp_granularities}


class DurationUsage(BaseModel):
    type: Literal["duration"]
    seconds: float = Field(description="Of sound.")


class TranscribedLogprob(BaseModel):
    token: str
    bytes: list[int]
    logprob: float


class TranscriptionWord(BaseModel):
    word: str
    start: float = Field(description="Seconds.")
    end: float


class TranscriptionSegment(BaseModel):
    id: int
    seek: int
    start: float = Field(description="Seconds.")
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Transcription(BaseModel):
    """A transcription. `verbose_json` has all fields except `logprobs`; `json` has `text` and
    `usage`.
    """

    text: str
    usage: DurationUsage
    logprobs: list[TranscribedLogprob] | None = None
    task: Literal["transcribe", "translate"] | None = None
    language: str | None = Field(
        default=None, description="English name of the language in lower case."
    )
    duration: float | None = Field(
        default=None, description="Seconds from the file's start to the end of its sound."
    )
    segments: list[TranscriptionSegment] | None = None
    words: list[TranscriptionWord] | None = None


async def _answer(
    session: CallSession, entry: DirectoryEntry, body: AudioTranslationRequest
) -> Answer:
    call = Call(
        task=PIPELINE.name,
        items=[body.file],
        parameters=body.parameters(),
        single=True,
        finishing={**body.finishing(), "model": entry.model},
        stream=body.is_streamed,
    )
    await session.collect(body)
    if body.is_streamed:
        return StreamedAnswer(session.stream(entry, call))
    return WholeAnswer(await session.run(entry, call), _TYPES.get(body.response_format, JSON))


OPERATIONS: tuple[Operation[Any], ...] = (
    Operation(
        path=TRANSCRIPTIONS,
        summary="Create a transcription",
        name="create_transcription",
        tag="Transcription",
        request=TranscriptionRequest,
        answers={JSON: Transcription, TEXT: None, VTT: None, EVENTS: None},
        example={"model": "tiny-transcriber", "file": "https://sounds.example/speech.wav"},
        media={"file": "audio"},
        bare=True,
        max_files=1,
        pipelines=[PIPELINE.name],
        answer=_answer,
    ),
    Operation(
        path=TRANSLATIONS,
        summary="Create a translation",
        name="create_translation",
        tag="Transcription",
        request=AudioTranslationRequest,
        answers={JSON: Transcription, TEXT: None, VTT: None},
        example={"model": "tiny-transcriber", "file": "https://sounds.example/rede.wav"},
        media={"file": "audio"},
        bare=True,
        max_files=1,
        pipelines=[PIPELINE.name],
        answer=_answer,
    ),
)
