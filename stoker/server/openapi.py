"""OpenAPI document: FastAPI's own, plus the bodies that task handlers read themselves."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from stoker.base.errors import (
    CapacityError,
    ErrorBody,
    HeadersTooLargeError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
    RequestTimeoutError,
    StokerError,
    UnsupportedMediaTypeError,
    URITooLongError,
)
from stoker.inference.bodies import FORM, accepted
from stoker.inference.operation import EVENTS, JSON, Endpoint
from stoker.inference.registry import OF_OTHER_APIS
from stoker.media.media import MediaKind
from stoker.models.tasks.base import Task
from stoker.models.tasks.registry import SERVED, TASKS
from stoker.platform.web.context import Platform, part_of
from stoker.platform.web.error_formats import (
    MESSAGES_PATH,
    MODELS_PATH,
    OVERLOADED,
    TEI_PATHS,
    AnthropicErrorBody,
    TeiErrorBody,
)
from stoker.platform.web.prefix import prefix_of
from stoker.server.document import Document
from stoker.tenancy.keys.auth import ACCOUNT_HEADER
from stoker.workloads.videos.endpoints import CREATE

PATH = "/openapi.json"
PIPELINES_EXTENSION = "x-pipelines"
MEDIA_EXTENSION = "x-media"
_REF = "#/components/schemas/{model}"


def install(app: FastAPI) -> None:
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = plain()
            for task in TASKS.values():
                for path in task.paths:
                    _describe_task(described, task, path)
            for endpoint in (*OF_OTHER_APIS, CREATE):
                _describe_endpoint(described, endpoint)
            write_errors(described)
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = openapi
    document = Document(openapi)

    async def get(request: Request) -> Response:
        public_url = part_of(request, Platform).settings.public_url
        return await document.response(prefix_of(request, public_url))

    app.add_route(PATH, get, include_in_schema=False)


def write_errors(document: dict[str, Any]) -> None:
    """Removes FastAPI's 422 responses and adds the edge's errors to those of the routes.

    Stoker's errors have status 400 instead of FastAPI's 422, and a different format.
    """
    schema = {"$ref": _REF.format(model=ErrorBody.__name__)}
    for item in document["paths"].values():
        for operation in item.values():
            operation["responses"].pop("422", None)
            for error in _of_the_edge(operation):
                response = {
                    "description": error.type,
                    "content": {"application/json": {"schema": schema}},
                }
                operation["responses"].setdefault(str(error.status), response)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    _write_errors_of_anthropic(document)
    _write_errors_of_tei(document)


def _set_errors(responses: dict[str, Any], schema: dict[str, Any]) -> None:
    """Describes the format of a route's errors."""
    for status, response in responses.items():
        if int(status) >= HTTPStatus.BAD_REQUEST:
            response["content"] = {JSON: {"schema": schema}}


def _write_errors_of_tei(document: dict[str, Any]) -> None:
    """Describes the errors of paths of Text Embeddings Inference. Not all documents have them."""
    paths = TEI_PATHS & document["paths"].keys()
    schema = _component(document, TeiErrorBody, "serialization") if paths else {}
    for path in paths:
        for operation in document["paths"][path].values():
            _set_errors(operation["responses"], schema)


def _write_errors_of_anthropic(document: dict[str, Any]) -> None:
    """Describes the errors of endpoints for Anthropic's clients, in their format."""
    theirs = _component(document, AnthropicErrorBody, "serialization")
    ours = {"$ref": _REF.format(model=ErrorBody.__name__)}
    for path, item in document["paths"].items():
        if not path.startswith((MESSAGES_PATH, MODELS_PATH)):
            continue
        schema = theirs if path.startswith(MESSAGES_PATH) else {"anyOf": [ours, theirs]}
        for operation in item.values():
            responses: dict[str, Any] = operation["responses"]
            _set_errors(responses, schema)
            responses[str(OVERLOADED)] = {
                **responses[str(CapacityError.status)],
                "description": "CapacityError",
            }
            if path.startswith(MESSAGES_PATH):
                del responses[str(CapacityError.status)]


def _of_the_edge(operation: dict[str, Any]) -> list[type[StokerError]]:
    errors: list[type[StokerError]] = [
        InvalidRequestError,
        RequestTimeoutError,
        URITooLongError,
        HeadersTooLargeError,
        InternalError,
        # The connection limit is reached, or a disk is full.
        CapacityError,
    ]
    if "requestBody" in operation:
        errors += [PayloadTooLargeError, UnsupportedMediaTypeError]
    if ACCOUNT_HEADER in {parameter["name"] for parameter in operation.get("parameters", [])}:
        # The account that an operator names does not exist.
        errors.append(NotFoundError)
    return errors


def _describe_task(document: dict[str, Any], task: Task, path: str) -> None:
    operation = document["paths"][path]["post"]
    schema = _component(document, task.request, "validation")
    operation["requestBody"] = _request_body(task, schema)
    operation |= _extensions(task.path, task.media)
    operation["responses"]["200"] = {
        "description": "The results together."
        if task.whole
        else "One result for a single input; a list of results for a list.",
        "content": {
            "application/json": {
                "schema": _result(document, task),
                "example": task.example_result,
            }
        },
    }


def _describe_endpoint(document: dict[str, Any], endpoint: Endpoint[Any]) -> None:
    operation = document["paths"][endpoint.path]["post"]
    schema = _component(document, endpoint.request, "validation")
    operation["requestBody"] = _request_body(endpoint, schema)
    operation |= _extensions(endpoint.path, endpoint.media)
    operation["responses"]["200"] = {
        "description": "The complete answer. If a stream is requested: server-sent events of the "
        "same API."
        if EVENTS in endpoint.answers
        else "The answer.",
        "content": {
            kind: {
                "schema": _component(document, answer, "serialization")
                if answer
                else _text_or_file(kind)
            }
            for kind, answer in endpoint.answers.items()
        },
    }


def _extensions(path: str, media: Mapping[str, MediaKind]) -> dict[str, Any]:
    """Returns the extensions for the console's playground: the pipelines that serve this path, and
    the fields that accept files with their kind.
    """
    pipelines = [name for name, pipeline in SERVED.items() if path in pipeline.paths]
    return {PIPELINES_EXTENSION: pipelines, MEDIA_EXTENSION: dict(media)}


def _request_body(asked: Task | Endpoint[Any], schema: dict[str, Any]) -> dict[str, Any]:
    file = {"type": "string", "format": "binary"}
    content: dict[str, Any] = {
        kind: {"schema": schema if kind in (JSON, FORM) else file} for kind in accepted(asked)
    }
    content[JSON]["example"] = dict(asked.example)
    return {"required": True, "content": content}


def _text_or_file(kind: str) -> dict[str, Any]:
    return {"type": "string"} | ({} if kind.startswith("text/") else {"format": "binary"})


def _component(
    document: dict[str, Any], model: type[BaseModel], mode: JsonSchemaMode
) -> dict[str, Any]:
    references, definitions = models_json_schema([(model, mode)], ref_template=_REF)
    _merge(document, definitions)
    return references[model, mode]


def _result(document: dict[str, Any], task: Task) -> dict[str, Any]:
    schema = TypeAdapter[Any](task.result).json_schema(ref_template=_REF)
    _merge(document, schema)
    # An empty list matches both: one input without results, and no inputs.
    return schema if task.whole else {"anyOf": [schema, {"type": "array", "items": schema}]}


def _merge(document: dict[str, Any], schema: dict[str, Any]) -> None:
    """Moves a schema's definitions to the document's. Raises ValueError if two share a name."""
    components = document.setdefault("components", {}).setdefault("schemas", {})
    for name, definition in schema.pop("$defs", {}).items():
        cleaned = _without_nulls(definition)
        if components.setdefault(name, cleaned) != cleaned:
            raise ValueError(f"two types of the API are called {name}")


def _without_nulls(schema: Any) -> Any:
    """Removes null defaults, as FastAPI does."""
    if isinstance(schema, dict):
        members = cast("dict[str, Any]", schema).items()
        return {name: _without_nulls(value) for name, value in members if value is not None}
    if isinstance(schema, list):
        return [_without_nulls(value) for value in cast("list[Any]", schema)]
    return schema
