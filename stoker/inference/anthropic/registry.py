"""Operations that follow Anthropic's API."""

from typing import Any

from stoker.inference.anthropic import message_object, messages
from stoker.inference.openai.generation import answering
from stoker.inference.operation import EVENTS, JSON, Operation
from stoker.models.tasks.registry import GENERATING

_TAG = "Generated text"
_PREFIX = "msg_"

OPERATIONS: tuple[Operation[Any], ...] = (
    Operation(
        path="/v1/messages",
        summary="Create a message",
        name="create_message",
        tag=_TAG,
        request=messages.MessagesRequest,
        answers={JSON: message_object.MessageObject, EVENTS: None},
        example=messages.EXAMPLE,
        has_media_in_json=True,
        pipelines=GENERATING,
        answer=answering(_PREFIX),
    ),
    Operation(
        path="/v1/messages/count_tokens",
        summary="Count the input tokens of a message",
        name="count_the_input_tokens_of_message",
        tag=_TAG,
        request=messages.CountTokensRequest,
        answers={JSON: message_object.MessageTokens},
        example=messages.EXAMPLE,
        has_media_in_json=True,
        pipelines=GENERATING,
        answer=answering(_PREFIX),
    ),
)
