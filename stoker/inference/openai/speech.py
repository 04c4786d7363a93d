"""`POST /v1/audio/speech`: text as speech, streamed as it is generated."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from stoker.inference.openai import hub
from stoker.inference.openai.sampling import ModelRequest, OpenAIRequest
from stoker.inference.operation import EVENTS, Operation, StreamedAnswer
from stoker.inference.session import CallSession
from stoker.models.tasks.service_tier import TieredRequest
from stoker.models.tasks.text_to_speech import PATH, PIPELINE
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.interface import KEEP_ALIVE, Call

MAX_CHARACTERS = 4096
CONTENT_TYPES: Mapping[str, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def _spoken(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _nothing(text: str) -> str:
    if text.strip():
        raise ValueError("is not supported by the models here")
    return text


VoiceName = Annotated[str, Field(min_length=1, max_length=128)]


class VoiceId(OpenAIRequest):
    id: VoiceName


class SpeechRequest(TieredRequest, ModelRequest):
    checks_spelling = True

    input: Annotated[str, AfterValidator(_spoken)] = Field(
        max_length=MAX_CHARACTERS, description="The text to speak."
    )
    voice: VoiceName | VoiceId | None = Field(
        default=None,
        description="One of the model's voices, by name or number. A model with only one voice "
        "accepts `default` and the names of OpenAI's voices for it.",
    )
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = Field(
        default=None,
        description="Default: mp3. `pcm` is signed 16-bit little-endian of one channel at 24 kHz.",
    )
    speed: float | None = Field(
        default=None,
        ge=0.25,
        le=4,
        description="Speed of the speech at the same pitch. Default: 1.",
    )
    instructions: Annotated[str, AfterValidator(_nothing)] | None = Field(
        default=None, max_length=MAX_CHARACTERS, description="Not supported. Must be empty."
    )
    stream_format: Literal["audio", "sse"] | None = Field(
        default=None, description="`sse`: events with base64 instead of the file itself."
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        le=2**63 - 1,
        description="The same seed makes the same sound again, on the same machine.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_the_hub(cls, data: Any) -> Any:
        return hub.unnested(data, "input", cls.model_fields)

    @property
    def form(self) -> str:
        return self.response_format or "mp3"

    @property
    def events(self) -> bool:
        return self.stream_format == "sse"

    def call(self) -> Call:
        voice = self.voice.id if isinstance(self.voice, VoiceId) else self.voice
        return Call(
            task=PIPELINE.name,
            items=[self.input],
            parameters={"voice": voice, "seed": self.seed},
            single=True,
            finishing={
                "form": self.form,
                "speed": 1.0 if self.speed is None else self.speed,
                "events": self.events,
            },
            stream=True,
        )


async def _answer(
    session: CallSession, entry: DirectoryEntry, body: SpeechRequest
) -> StreamedAnswer:
    # No bytes may come between two parts of a file.
    parts = session.stream(entry, body.call(), keep_alive=KEEP_ALIVE if body.events else b"")
    return StreamedAnswer(parts, EVENTS if body.events else CONTENT_TYPES[body.form])


OPERATION = Operation(
    path=PATH,
    summary="Create speech",
    name="create_speech",
    tag="Audio",
    request=SpeechRequest,
    answers={**dict.fromkeys(CONTENT_TYPES.values()), EVENTS: None},
    example={
        "model": "random-speech",
        "input": "The train to Berlin leaves at nine.",
        "voice": "default",
    },
    pipelines=(PIPELINE.name,),
    answer=_answer,
)
