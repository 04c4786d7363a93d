"""Content of stored responses: requests, items and answers as JSON."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from pydantic import BaseModel, TypeAdapter

from stoker.inference.openai.items import Input, InputItem
from stoker.inference.openai.responses import ResponseRequest
from stoker.media.inline import Inline
from stoker.platform.sealing import Sealer
from stoker.store.secret import ServerSecret
from stoker.store.tables.responses import ResponseStatus, StoredResponse

_INPUT: TypeAdapter[Input] = TypeAdapter(Input)
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "compaction": "cmp",
}


def items_of(given: Input, response_id: str) -> list[dict[str, Any]]:
    """Returns the items of an input as JSON, each with an id."""
    parts = input_of([{"role": "user", "content": given}]) if isinstance(given, str) else given
    number = response_id.rpartition("_")[2]
    items: list[dict[str, Any]] = []
    for index, item in enumerate(parts):
        fields = plain(item.model_dump(exclude_none=True))
        if isinstance(fields.get("content"), str):
            is_answer = fields["role"] == "assistant"
            kind: dict[str, Any] = {"type": "output_text" if is_answer else "input_text"}
            fields["content"] = [{**kind, "text": fields["content"]}]
        prefix = _PREFIXES.get(fields["type"], "item")
        items.append({"id": f"{prefix}_{number}_{index}", **fields})
    return items


def fields_of(body: ResponseRequest) -> dict[str, Any]:
    """Returns the fields of a request as JSON, without the input."""
    return plain(body.model_dump(exclude={"input"}, exclude_unset=True, by_alias=True))


def plain(value: Any) -> Any:
    """Returns JSON values, with inline media as texts."""
    if isinstance(value, Inline):
        return value.text().decode()
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_none=True))
    if isinstance(value, dict):
        return {key: plain(member) for key, member in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(member) for member in cast("Sequence[Any]", value)]
    return value


def input_of(items: Sequence[Any]) -> list[InputItem]:
    """Returns items that were stored."""
    return cast("list[InputItem]", _INPUT.validate_python(items))


def sealer(secret: ServerSecret, row: StoredResponse) -> Sealer:
    return Sealer(secret, row.content_key)


def response_of(secret: ServerSecret, row: StoredResponse) -> dict[str, Any]:
    """Returns a response as clients receive it."""
    response: dict[str, Any] = sealer(secret, row).unseal(row.answer)
    if row.status == ResponseStatus.COMPLETED:
        return response
    error = None
    if row.status == ResponseStatus.FAILED:
        # Failed while it was answered, or as a job.
        error = response["error"] or {"code": "server_error", "message": row.error_message or ""}
    return {**response, "status": row.status, "error": error}


def encoded(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode(response)
