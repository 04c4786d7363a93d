"""Every field that the SDK's types name is known here: honoured, or refused by its name."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import (
    completion_create_params,
    embedding_create_params,
    image_edit_params,
    image_generate_params,
    video_create_params,
)
from openai.types.audio import (
    speech_create_params,
    transcription_create_params,
    translation_create_params,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from stoker.openai.chat import ChatRequest
from stoker.openai.completions import CompletionRequest
from stoker.openai.image_requests import ImageEditRequest, ImageGenerationRequest
from stoker.openai.responses import ResponseRequest
from stoker.openai.sampling import OpenAIRequest
from stoker.openai.speech import SpeechRequest
from stoker.openai.transcriptions import AudioTranslationRequest, TranscriptionRequest
from stoker.tasks.embeddings import EmbeddingsRequest
from stoker.videos.schemas import VideoCreate
from tests.support.server import Server


def named(params: Any) -> Iterator[str]:
    """The fields of a TypedDict and of those that it extends, which its class does not tell."""
    yield from params.__annotations__
    for base in getattr(params, "__orig_bases__", ()):
        if hasattr(base, "__annotations__"):
            yield from named(base)


@pytest.mark.parametrize(
    ("request_type", "params"),
    [
        (ChatRequest, chat_create_params.CompletionCreateParamsStreaming),
        (CompletionRequest, completion_create_params.CompletionCreateParamsStreaming),
        (ResponseRequest, response_create_params.ResponseCreateParamsStreaming),
        (EmbeddingsRequest, embedding_create_params.EmbeddingCreateParams),
        (ImageGenerationRequest, image_generate_params.ImageGenerateParamsStreaming),
        (ImageEditRequest, image_edit_params.ImageEditParamsStreaming),
        (SpeechRequest, speech_create_params.SpeechCreateParams),
        (TranscriptionRequest, transcription_create_params.TranscriptionCreateParamsStreaming),
        (AudioTranslationRequest, translation_create_params.TranslationCreateParams),
        (VideoCreate, video_create_params.VideoCreateParams),
    ],
    ids=lambda value: value.__name__ if value.__module__.startswith("stoker") else "",
)
def test_known(request_type: type[OpenAIRequest], params: Any) -> None:
    known = {field.alias or name for name, field in request_type.model_fields.items()}
    refused: dict[str, str] = getattr(request_type, "refused", {})
    wanted = set(named(params))
    assert {"model"} <= wanted
    assert wanted <= known | set(refused)


@pytest.mark.case(21)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
    ],
)
def test_prompt_embeddings_are_refused(gateway: Server, path: str, body: dict[str, Any]) -> None:
    """CVE-2026-56340: a serialised tensor as the prompt. Not ignored: it would be left out."""
    with gateway.account("embeds") as client:
        for given in ("UEsDBAAACAgAAA==", ["UEsDBAAACAgAAA=="], {"tensor": []}):
            answer = client.post(path, json={"model": "m", **body, "prompt_embeds": given})
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("invalid_request", "prompt_embeds")
