"""Every field of OpenAI's SDK and of other servers' protocols is honoured or refused here."""

import json
from collections.abc import Iterator
from pathlib import Path
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
from pydantic import BaseModel, ValidationError

from stoker.base.errors import InvalidRequestError, from_validation
from stoker.inference.openai.chat import ChatRequest
from stoker.inference.openai.completions import CompletionRequest
from stoker.inference.openai.image_requests import ImageEditRequest, ImageGenerationRequest
from stoker.inference.openai.responses import ResponseRequest
from stoker.inference.openai.speech import SpeechRequest
from stoker.inference.openai.transcriptions import AudioTranslationRequest, TranscriptionRequest
from stoker.models.tasks.embeddings import EmbeddingsRequest
from stoker.models.tasks.field_checks import CheckedFields
from stoker.models.tasks.known_fields import DIALECTS, FIELDS, Endpoint
from stoker.models.tasks.rerank import RerankRequest
from stoker.workloads.videos.schemas import VideoCreate
from tests.support.server import Server


def named(params: Any) -> Iterator[str]:
    """Yields the fields of a TypedDict and of its bases, which its class does not list."""
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
def test_known(request_type: type[CheckedFields], params: Any) -> None:
    refused: dict[str, str] = getattr(request_type, "refused", {})
    rows = FIELDS[request_type.endpoint] if request_type.endpoint else ()
    field_names = set(named(params))
    assert {"model"} <= field_names
    assert field_names <= own(request_type) | set(refused) | set(rows)


def own(request_type: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in request_type.model_fields.items()}


REQUESTS: dict[Endpoint, tuple[type[CheckedFields], dict[str, Any]]] = {
    "chat": (ChatRequest, {"messages": [{"role": "user", "content": "x"}]}),
    "completions": (CompletionRequest, {"prompt": "x"}),
    "responses": (ResponseRequest, {"input": "x"}),
    "embeddings": (EmbeddingsRequest, {"input": "x"}),
    "rerank": (RerankRequest, {"query": "x", "documents": ["y"]}),
    "transcriptions": (TranscriptionRequest, {"file": "aGk="}),
    "translations": (AudioTranslationRequest, {"file": "aGk="}),
}
# The name of each server is followed by its version or commit.
PROTOCOLS: dict[str, dict[Endpoint, list[str]]] = json.loads(
    (Path(__file__).parent / "data" / "protocol_fields.json").read_text()
)
ODD = {"odd": [1]}
"""Value that is no field's default."""


def refusal_of(endpoint: Endpoint, **more: Any) -> InvalidRequestError | None:
    request_type, body = REQUESTS[endpoint]
    try:
        request_type.model_validate_json(json.dumps(body | more))
    except ValidationError as error:
        return from_validation(error, request_type.model_fields)
    return None


class TestOtherServersFields:
    @pytest.mark.parametrize(
        ("server", "endpoint"),
        [(server, endpoint) for server, named in PROTOCOLS.items() for endpoint in named],
    )
    def test_each_is_honoured_or_has_no_effect_or_is_refused(
        self, server: str, endpoint: Endpoint
    ) -> None:
        fields = own(REQUESTS[endpoint][0])
        for name in PROTOCOLS[server][endpoint]:
            row = FIELDS[endpoint][name]
            known_to = {dialect.lower() for dialect in DIALECTS[name]}
            assert known_to & {"openai", server.partition(" ")[0]}, name
            if row.effect == "honoured":
                assert name in fields, name
                continue
            assert refusal_of(endpoint, **{name: None}) is None, name
            refused = refusal_of(endpoint, **{name: ODD})
            if row.effect == "no effect":
                assert refused is None, name
                continue
            assert refused is not None, name
            assert refused.param == name
            assert row.why
            assert refused.message.startswith(f"'{row.name}' {row.why}")
            for value in row.accepted:
                assert refusal_of(endpoint, **{name: value}) is None, (name, value)

    def test_the_table_and_the_requests_agree(self) -> None:
        for endpoint, (request_type, _) in REQUESTS.items():
            for name in own(request_type):
                row = FIELDS[endpoint].get(name)
                assert row is None or row.effect == "honoured" or name == "max_tokens", name
                assert row or name in ("prompt_name", "timeout"), name
        for name, row in FIELDS["chat"].items():
            if row.effect == "honoured":
                assert any(name in own(schema) for schema, _ in REQUESTS.values()), name

    @pytest.mark.parametrize(
        ("endpoint", "more", "names"),
        [
            ("chat", {"input": "x"}, "messages"),
            ("chat", {"dimensions": 3}, "other endpoints"),
            ("chat", {"chat_template": "{{ messages }}"}, "chat_template_kwargs"),
            ("chat", {"enable_thinking": False}, "chat_template_kwargs"),
            ("chat", {"stream_options": {"continuous_usage_stats": True}, "stream": True}, "usage"),
            ("completions", {"messages": []}, "prompt"),
            ("completions", {"chat_template_kwargs": {"a": 1}}, "/v1/chat/completions"),
            ("responses", {"max_tokens": 5}, "max_output_tokens"),
            ("embeddings", {"truncate_prompt_tokens": 5}, "truncation"),
            ("embeddings", {"messages": []}, "input"),
            ("rerank", {"truncate": True}, "truncation"),
            ("rerank", {"instruction": "x"}, "query"),
        ],
    )
    def test_a_refusal_says_what_works(
        self, endpoint: Endpoint, more: dict[str, Any], names: str
    ) -> None:
        refused = refusal_of(endpoint, **more)
        assert refused is not None
        assert names in refused.message

    @pytest.mark.parametrize(
        ("endpoint", "more"),
        [
            ("chat", {"use_beam_search": False, "length_penalty": 2.0, "echo": False}),
            ("chat", {"mirostat": 0, "typical_p": 1.0, "cache_prompt": True, "cache_salt": "a"}),
            (
                "chat",
                {"add_special_tokens": False, "include_reasoning": True, "truncation": "disabled"},
            ),
            ("completions", {"add_special_tokens": True, "suffix": "", "top_logprobs": 0}),
            ("responses", {"request_id": "a", "kv_transfer_params": {"a": 1}}),
            ("embeddings", {"embed_dtype": "float32", "endianness": "little", "stream": False}),
            ("rerank", {"priority": 1, "user": "me", "truncation_side": "right"}),
            ("embeddings", {"service_tier": "flex", "metadata": {"a": "b"}, "store": True}),
            ("transcriptions", {"n": "1", "use_beam_search": "false", "top_p": 1.0}),
        ],
    )
    def test_what_the_server_does_anyway_is_accepted(
        self, endpoint: Endpoint, more: dict[str, Any]
    ) -> None:
        assert refusal_of(endpoint, **more) is None


class TestUnknownFields:
    @pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "embeddings"])
    def test_are_ignored(self, endpoint: Endpoint) -> None:
        """Unknown fields are ignored: OpenAI's clients send new fields all the time."""
        assert refusal_of(endpoint, x=1, brand_new_field={"a": [1]}) is None

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("max_token", "max_tokens"),
            ("maxTokens", "max_tokens"),
            ("temperatur", "temperature"),
            ("tempreature", "temperature"),
            ("top-p", "top_p"),
            ("stops", "stop"),
            ("reponse_format", "response_format"),
            ("chat_template_kwarg", "chat_template_kwargs"),
            ("guided_chioce", "guided_choice"),
        ],
    )
    def test_are_refused_where_they_are_misspelt(self, name: str, meant: str) -> None:
        refused = refusal_of("chat", **{name: 1})
        assert refused is not None
        assert refused.param == name
        assert refused.message == f"'{name}' is unknown: did you mean '{meant}'?"

    @pytest.mark.parametrize("name", ["step", "next", "top_x", "seat", "usage", "a" * 100_000])
    def test_are_ignored_where_they_mean_something_else(self, name: str) -> None:
        assert refusal_of("chat", **{name: 1}) is None

    @pytest.mark.parametrize(
        ("more", "param"),
        [
            (
                {"type": "json_schema", "json_schema": {"name": "x", "shema": {"type": "array"}}},
                "response_format.json_schema.shema",
            ),
            (
                {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "parameters": {"type": "null"}},
                },
                "response_format.json_schema.parameters",
            ),
            ({"type": "json_object", "schemas": {"type": "array"}}, "response_format.schemas"),
            ({"type": "json_schema"}, "response_format.json_schema"),
        ],
    )
    def test_no_schema_is_lost(self, more: dict[str, Any], param: str) -> None:
        refused = refusal_of("chat", response_format=more)
        assert refused is not None
        assert refused.param == param


class TestMembersThatWouldBeLost:
    @pytest.mark.parametrize(
        ("endpoint", "more", "param"),
        [
            (
                "chat",
                {"tools": [{"type": "function", "function": {"name": "f", "input_schema": {}}}]},
                "tools[0].function.input_schema",
            ),
            (
                "chat",
                {"tools": [{"type": "function", "function": {"name": "f", "parameter": {}}}]},
                "tools[0].function.parameter",
            ),
            (
                "responses",
                {"tools": [{"type": "function", "name": "f", "inputSchema": {}}]},
                "tools[0].inputSchema",
            ),
            ("responses", {"text": {"fromat": {"type": "json_object"}}}, "text.fromat"),
            ("responses", {"reasoning": {"efort": "low"}}, "reasoning.efort"),
            (
                "chat",
                {"messages": [{"role": "assistant", "content": "x", "prefix": True}]},
                "messages[0].prefix",
            ),
            (
                "chat",
                {"messages": [{"role": "assistant", "content": "x", "partial": True}]},
                "messages[0].partial",
            ),
        ],
    )
    def test_are_refused(self, endpoint: Endpoint, more: dict[str, Any], param: str) -> None:
        refused = refusal_of(endpoint, **more)
        assert refused is not None
        assert refused.param == param

    def test_others_are_ignored(self) -> None:
        function = {"name": "f", "returns": {"type": "object"}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "x", "cache_control": {"type": "ephemeral"}},
            {"role": "assistant", "content": "x", "prefix": False, "annotations": []},
        ]
        tools = [{"type": "function", "function": function}]
        assert refusal_of("chat", messages=messages, tools=tools) is None


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
    """A serialised tensor as the prompt is refused (CVE-2026-56340).

    If it were ignored, the prompt would be incomplete.
    """
    with gateway.account("embeds") as client:
        for value in ("UEsDBAAACAgAAA==", ["UEsDBAAACAgAAA=="], {"tensor": []}):
            answer = client.post(path, json={"model": "m", **body, "prompt_embeds": value})
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("invalid_request", "prompt_embeds")
