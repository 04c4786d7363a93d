"""The OpenAPI document describes the server's behaviour, and every request field has a bound."""

import json
import re
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import httpx
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo

from stoker.inference.openai.messages import MAX_IMAGE_CHARS, ImageUrl
from stoker.inference.openai.registry import OPERATIONS
from stoker.inference.other_servers import registry as other_servers
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.registry import TASKS, WORKS
from stoker.platform.web.error_formats import TEI_PATHS
from stoker.platform.web.schemas import RequestModel
from stoker.workloads.videos.schemas import VideoCreate
from tests.deployments.routes import OPEN, PAGES, SIGNED_IN, app, places
from tests.support.contract import HIDDEN
from tests.support.server import Server

METHODS = {"get", "put", "post", "delete", "patch", "head", "options", "trace"}

Operation = tuple[str, str, dict[str, Any]]

# The handler checks these fields against settings (text_limit_chars, list_limit).
LIMITED_BY_SETTINGS = {
    f"{model.__name__}.{field}"
    for task in WORKS.values()
    if isinstance(task, Task)
    for model in task.request.__mro__
    if issubclass(model, TaskRequest)
    for field in model.input_fields
}


SCHEMA = "its size and depth are limited (stoker/wire/schema_limits.py)"
CHECKED_OTHERWISE = {
    "Check.request": "it is checked as a body of the endpoint that it is for",
    "CompletionRequest.prompt": "its validator bounds tokens, and the body's limit how many",
    "Expect.equal": "the body's limit",
    "Expect.json_schema": "it is compiled as one",
    "FunctionDefinition.parameters": SCHEMA,
    "FunctionTool.parameters": SCHEMA,
    "JsonSchema.schema_": SCHEMA,
    "JsonSchemaFormat.schema_": SCHEMA,
    "JsonSchemaFormat.value": SCHEMA,
    "JsonValueFormat.schema_": SCHEMA,
    "JsonValueFormat.value": SCHEMA,
    "RankTextsRequest.ranked": "`texts`, which are checked against text_limit_chars",
    "SchemaFormat.schema_": SCHEMA,
    "SimilarSentences.sentences": "text_limit_chars",
    "SimilarSentences.source_sentence": "text_limit_chars",
    "StructuredOutputs.json_": SCHEMA,
    "TokenizeChatRequest.chat_template_kwargs": "its validator bounds its JSON",
    "TrialCreate.examples": "each is checked as a body of the endpoint that it is for",
}
for _model in (
    *("ChatRequest", "CompactionRequest", "CompletionRequest"),
    *("InputTokensRequest", "ResponseRequest"),
):
    CHECKED_OTHERWISE |= {
        f"{_model}.guided_json": SCHEMA,
        f"{_model}.json_schema": SCHEMA,
        f"{_model}.allowed_token_ids": "its validator bounds tokens, and how many",
        f"{_model}.chat_template_kwargs": "its validator bounds its JSON",
    }
"""Maps a field to its bound, for fields without a bound in their type."""


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    with server.client() as client:
        return client.get("/openapi.json").raise_for_status().json()


def operations(document: dict[str, Any]) -> list[Operation]:
    return [
        (method, path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


def plain(path: str) -> str:
    """Returns a route's path as in OpenAPI, without converters."""
    return re.sub(r":\w+\}", "}", path)


class TestDocument:
    def test_head(self, document: dict[str, Any]):
        assert document["openapi"].startswith("3.1")
        assert document["info"]["title"] == "Stoker"
        assert document["info"]["version"]

    @pytest.mark.case(14)
    def test_every_route_is_in_it(self, document: dict[str, Any]):
        described = {(method.upper(), path) for method, path, _ in operations(document)}
        served = {
            (place.method, plain(place.path))
            for place in places()
            if place.path not in HIDDEN | PAGES
        }
        assert described == served

    def test_every_reference_resolves(self, document: dict[str, Any]):
        references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)))
        assert references
        for reference in references:
            target: Any = document
            for part in reference.removeprefix("#/").split("/"):
                target = target[part]

    def test_operation_ids_are_unique(self, document: dict[str, Any]):
        ids = [operation["operationId"] for _, _, operation in operations(document)]
        assert len(ids) == len(set(ids))

    def test_every_operation_says_what_it_does(self, document: dict[str, Any]):
        for method, path, operation in operations(document):
            assert operation.get("summary"), (method, path)
            assert operation.get("tags"), (method, path)

    def test_keyed_operations_document_the_key(self, document: dict[str, Any]):
        for method, path, operation in operations(document):
            keyed = path not in OPEN
            assert ("401" in operation["responses"]) == keyed, (method, path)
            is_signing_in = (method, path) == ("post", SIGNED_IN)
            assert bool(operation.get("security")) == (keyed and not is_signing_in), (method, path)

    def test_errors_have_our_shape(self, document: dict[str, Any]):
        for method, path, operation in operations(document):
            for status, response in operation["responses"].items():
                assert status != "422", (method, path)
                if status >= "400" and path not in OPEN:
                    schema = response["content"]["application/json"]["schema"]
                    names = (
                        ["AnthropicErrorBody"]
                        if path.startswith("/v1/messages")
                        else ["ErrorBody", "AnthropicErrorBody"]
                        if path.startswith("/v1/models")
                        else ["TeiErrorBody"]
                        if path in TEI_PATHS
                        else ["ErrorBody"]
                    )
                    refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
                    assert schema.get("anyOf", [schema]) == refs, (path, status)

    def test_path_parameters_are_described(self, document: dict[str, Any]):
        for method, path, operation in operations(document):
            named = {
                parameter["name"]
                for parameter in operation.get("parameters", [])
                if parameter["in"] == "path"
            }
            assert named == set(re.findall(r"\{(\w+)\}", path)), (method, path)


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.pipeline)
class TestTask:
    def test_request_has_schema_and_example(self, document: dict[str, Any], task: Task):
        content = document["paths"][task.path]["post"]["requestBody"]["content"]
        body = content["application/json"]
        name = body["schema"]["$ref"].rsplit("/", 1)[1]
        fields = document["components"]["schemas"][name]["properties"]
        assert set(fields) == set(task.request.model_fields)
        parsed = task.request.model_validate(body["example"])
        assert parsed.items()[0]

    def test_response_has_schema_and_example(self, document: dict[str, Any], task: Task):
        operation = document["paths"][task.path]["post"]
        body = operation["responses"]["200"]["content"]["application/json"]
        assert body["schema"]
        TypeAdapter(task.result).validate_python(body["example"])

    def test_errors_of_a_call_are_described(self, document: dict[str, Any], task: Task):
        statuses = set(document["paths"][task.path]["post"]["responses"])
        assert {"400", "401", "404", "413", "415", "429", "500", "503", "504"} <= statuses

    def test_example_is_accepted(self, server: Server, task: Task, nobody: httpx.Client):
        """The example passes every check of its body. It fails only because the key has no such
        model.
        """
        response = nobody.post(task.path, json=dict(task.example))
        assert response.json()["error"]["code"] == "model_not_found"


def request_models(base: type[BaseModel]) -> list[type[BaseModel]]:
    return [model for child in base.__subclasses__() for model in [child, *request_models(child)]]


def with_parts(model: type[BaseModel], found: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """Adds a model and all models in its fields to `found` and returns it."""
    if model not in found:
        found.add(model)
        pending: list[Any] = [field.annotation for field in model.model_fields.values()]
        while pending:
            part = pending.pop()
            pending += get_args(part)
            if isinstance(part, type) and issubclass(part, BaseModel):
                with_parts(part, found)
    return found


def fields() -> Iterator[tuple[str, FieldInfo]]:
    app()  # imports every endpoint, and thereby every request
    named = {*request_models(RequestModel), *request_models(TaskRequest), VideoCreate}
    models: set[type[BaseModel]] = set()
    operations = (*OPERATIONS, *other_servers.OPERATIONS)
    for model in (*named, *(operation.request for operation in operations)):
        with_parts(model, models)
    assert len(models) >= 30
    for model in models:
        for name, field in model.model_fields.items():
            yield f"{model.__name__}.{name}", field


def unbounded(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yields the parts of a type that have no bound: numbers, texts and lists."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from unbounded(arguments[0], (*metadata, *arguments[1:]))
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from unbounded(argument, metadata)
    elif origin is Literal or annotation in (bool, type(None)):
        return
    elif origin is tuple and Ellipsis not in arguments:
        for argument in arguments:
            yield from unbounded(argument)
    elif origin in (list, tuple, set, dict):
        if not has(metadata, annotated_types.MaxLen):
            yield str(annotation)
        for argument in arguments:
            yield from unbounded(argument)
    elif isinstance(annotation, type) and issubclass(annotation, (Enum, BaseModel)):
        return
    elif annotation in (int, float):
        if not (
            has(metadata, annotated_types.Ge, annotated_types.Gt)
            and has(metadata, annotated_types.Le, annotated_types.Lt)
        ):
            yield str(annotation)
    elif annotation is str and not (
        has(metadata, annotated_types.MaxLen) or has_pattern(metadata) or has_length(metadata)
    ):
        yield str(annotation)
    elif annotation is Any:
        yield "Any"


def flat(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for entry in metadata:
        yield entry
        if isinstance(entry, FieldInfo):
            yield from entry.metadata


def has(metadata: tuple[Any, ...], *kinds: type) -> bool:
    return any(isinstance(entry, kinds) for entry in flat(metadata))


def has_pattern(metadata: tuple[Any, ...]) -> bool:
    """Returns True if a pattern bounds the text's length, which requires a pattern without
    unlimited repetition.
    """
    patterns = [pattern for entry in flat(metadata) if (pattern := getattr(entry, "pattern", None))]
    return any(not re.search(r"[*+]|,\}", pattern) for pattern in patterns)


def has_length(metadata: tuple[Any, ...]) -> bool:
    """Returns True if the document names a maximum length, which one of our validators checks."""
    return any(
        isinstance(entry, WithJsonSchema) and "maxLength" in entry.json_schema
        for entry in flat(metadata)
    )


@pytest.mark.case(17)
class TestBounds:
    def test_a_length_that_the_document_alone_names_is_kept(self):
        with pytest.raises(ValidationError, match="must have at most"):
            ImageUrl(url="a" * (MAX_IMAGE_CHARS + 1))

    @pytest.mark.parametrize(("name", "field"), sorted(fields(), key=lambda pair: pair[0]))
    def test_every_field_is_bounded(self, name: str, field: FieldInfo):
        if name not in {*LIMITED_BY_SETTINGS, *CHECKED_OTHERWISE}:
            assert list(unbounded(field.annotation, tuple(field.metadata))) == []

    @pytest.mark.parametrize(
        ("annotation", "found"),
        [
            (int, 1),
            (Annotated[int, annotated_types.Ge(0)], 1),
            (Annotated[float, annotated_types.Gt(0), annotated_types.Lt(1)], 0),
            (str | None, 1),
            (Annotated[list[str], annotated_types.MaxLen(3)], 1),
            (list[Annotated[str, annotated_types.MaxLen(3)]], 1),
            (Literal["a"] | bool | None, 0),
            (dict[str, Any], 3),
        ],
    )
    def test_the_search_finds_them(self, annotation: Any, found: int):
        assert len(list(unbounded(annotation))) == found

    def test_query_parameters_are_bounded(self, document: dict[str, Any]):
        for method, path, operation in operations(document):
            for parameter in operation.get("parameters", []):
                if parameter["in"] != "query":
                    continue
                schemas = parameter["schema"].get("anyOf", [parameter["schema"]])
                for candidate in schemas:
                    name = candidate.get("$ref", "").rpartition("/")[2]
                    schema = document["components"]["schemas"][name] if name else candidate
                    bounded = {
                        "integer": {"minimum", "maximum"} <= set(schema),
                        "number": {"minimum", "maximum"} <= set(schema),
                        "string": bool({"enum", "maxLength", "pattern"} & set(schema)),
                    }.get(schema["type"], True)
                    assert bounded, (method, path, parameter["name"])


@pytest.fixture(scope="module")
def nobody(server: Server) -> Iterator[httpx.Client]:
    """Yields a client of an account without deployments."""
    with server.account("nobody") as client:
        yield client
