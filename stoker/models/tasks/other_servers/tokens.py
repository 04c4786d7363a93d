"""Tokens of texts and texts of tokens, in the formats of Text Embeddings Inference and vLLM.

They need no forward pass. For language models, `stoker.models.chat.prompts.token_lists` answers.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, cast

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, RootModel
from pydantic_core import PydanticCustomError

from stoker.models.stages import token_lists
from stoker.models.stages.base import InputError, Stages
from stoker.models.stages.embedding import EmbeddingStages
from stoker.models.stages.text import MAX_TOKENS, TextStages
from stoker.models.stages.token_lists import ListedToken
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.inputs import MAX_TOKEN_ID, TextInputs
from stoker.models.tasks.other_servers.fields import PromptName

MAX_LISTED = 1 << 20
"""Maximum number of token ids, or of characters to tokenize, in a request."""
PIPELINES = (
    "token-classification",
    "text-classification",
    "zero-shot-classification",
    "fill-mask",
    "question-answering",
    "translation",
    "summarization",
    "feature-extraction",
    "text-ranking",
    "zero-shot-image-classification",
    "visual-question-answering",
    "document-question-answering",
)
"""Pipelines with stages that tokenize a text. Language models have none."""
SpecialTokens = Annotated[
    bool, Field(description="Add the special tokens that the model reads around a text.")
]


def _ids(value: Any) -> list[int]:
    """Returns the token ids, validated as a whole list: a list may have a million."""
    if not isinstance(value, list):
        raise PydanticCustomError("value_error", "must be a list of token ids")
    ids = cast("list[Any]", value)
    # `True` is an int in Python, but not in JSON.
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > MAX_TOKEN_ID):
        raise PydanticCustomError("value_error", "must be a list of token ids")
    if len(ids) > MAX_LISTED:
        raise PydanticCustomError(
            "value_error", "must have at most {most} token ids", {"most": MAX_LISTED}
        )
    return ids


def _lists(value: Any) -> list[list[int]]:
    """Returns the lists of ids. A list of numbers is a single one."""
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    if not rows or not isinstance(rows[0], list):
        return [_ids(value)]
    lists = [_ids(row) for row in rows]
    if sum(map(len, lists)) > MAX_LISTED:
        raise PydanticCustomError(
            "value_error", "must have at most {most} token ids together", {"most": MAX_LISTED}
        )
    return lists


def _short(texts: Any) -> Any:
    """Refuses texts that could have more than `MAX_LISTED` tokens."""
    several = cast("list[Any]", texts) if isinstance(texts, list) else [texts]
    length = sum(len(text) for text in several if isinstance(text, str))
    if length > MAX_LISTED:
        raise PydanticCustomError(
            "value_error",
            "has {length} characters; the limit is {most}",
            {"length": length, "most": MAX_LISTED},
        )
    return cast("Any", texts)


class ListTokensRequest(TaskRequest):
    """Request for the tokens of texts, as Text Embeddings Inference defines it."""

    inputs: Annotated[TextInputs, BeforeValidator(_short)]
    add_special_tokens: SpecialTokens = True
    prompt_name: PromptName = None

    def items(self) -> tuple[list[Any], bool]:
        return super().items()[0], False

    def parameters(self) -> dict[str, Any]:
        named = {"prompt_name": self.prompt_name} if self.prompt_name else {}
        return {"special": self.add_special_tokens, **named}


class DecodeRequest(TaskRequest):
    ids: Annotated[
        list[list[int]],
        PlainValidator(_lists, json_schema_input_type=list[int] | list[list[int]]),
        Field(description="Token ids, or a list of such lists: one text each."),
    ]
    skip_special_tokens: bool = Field(
        default=True, description="Leave special tokens out of the texts."
    )

    input_fields: ClassVar[tuple[str, ...]] = ("ids",)

    def texts(self) -> Iterator[tuple[str, str]]:
        return iter(())

    def items(self) -> tuple[list[Any], bool]:
        return list(self.ids), False

    def parameters(self) -> dict[str, Any]:
        return {"skip_special": self.skip_special_tokens}


class TokenizePromptRequest(TaskRequest):
    """Request for the tokens of a prompt, as vLLM defines it."""

    prompt: Annotated[str, Field(max_length=MAX_LISTED, description="The text to tokenize.")]
    add_special_tokens: SpecialTokens = True
    return_token_strs: bool | None = Field(
        default=None, description="Return the tokens as texts, too."
    )

    input_fields: ClassVar[tuple[str, ...]] = ("prompt",)

    def parameters(self) -> dict[str, Any]:
        return {"special": self.add_special_tokens, "strings": bool(self.return_token_strs)}


class DetokenizeRequest(TaskRequest):
    tokens: Annotated[
        list[int],
        PlainValidator(_ids, json_schema_input_type=list[int]),
        Field(description="Token ids."),
    ]

    input_fields: ClassVar[tuple[str, ...]] = ("tokens",)

    def texts(self) -> Iterator[tuple[str, str]]:
        return iter(())

    def items(self) -> tuple[list[Any], bool]:
        return [self.tokens], True

    def parameters(self) -> dict[str, Any]:
        return {}


class TokenLists(RootModel[list[list[ListedToken]]]):
    """The tokens of each text."""


class DecodedTexts(RootModel[list[str]]):
    """The text of each list of tokens."""


class TokenizedPrompt(BaseModel):
    count: int
    max_model_len: int | None = Field(
        description="Maximum tokens of the model. Null if it has no limit."
    )
    tokens: list[int]
    token_strs: list[str] | None = Field(description="With `return_token_strs`.")


class DetokenizedPrompt(BaseModel):
    prompt: str


def _text_stages(stages: Stages) -> TextStages:
    if not isinstance(stages, TextStages):
        raise InputError("This model has no tokenizer for texts.", field="model", of_item=False)
    return stages


def _list(stages: Stages, text: str, parameters: Mapping[str, Any]) -> list[ListedToken]:
    tokenizer = _text_stages(stages).tokenizer
    if isinstance(stages, EmbeddingStages):
        text = stages.cased(stages.prompt(parameters) + text)
    elif "prompt_name" in parameters:
        raise InputError(
            "This model has no prompts: leave it out.", field="prompt_name", of_item=False
        )
    return token_lists.listed(tokenizer, text, special=parameters["special"])


def _decode(stages: Stages, ids: list[int], parameters: Mapping[str, Any]) -> str:
    tokenizer = _text_stages(stages).tokenizer
    token_lists.refuse_unknown(tokenizer, ids, stages.embedded, field="ids")
    return token_lists.decoded(tokenizer, ids, skip_special=parameters["skip_special"])


def _tokenize(stages: Stages, text: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    text_stages = _text_stages(stages)
    tokenizer, most = text_stages.tokenizer, text_stages.max_tokens()
    ids = token_lists.ids_of(tokenizer, text, special=parameters["special"])
    max_tokens = most if most < MAX_TOKENS else None
    return token_lists.tokenized(tokenizer, ids, max_tokens, with_strings=parameters["strings"])


def _detokenize(stages: Stages, ids: list[int], _parameters: Mapping[str, Any]) -> dict[str, str]:
    tokenizer = _text_stages(stages).tokenizer
    token_lists.refuse_unknown(tokenizer, ids, stages.embedded, field="tokens")
    return {"prompt": token_lists.decoded(tokenizer, ids, skip_special=False)}


LIST_TOKENS = Task(
    pipeline=PIPELINES[0],
    also=PIPELINES[1:],
    name="list_tokens",
    path="/tokenize",
    summary="List the tokens of texts",
    request=ListTokensRequest,
    result=TokenLists,
    example={"inputs": "How do I bake bread?"},
    direct=_list,
)
DECODE = Task(
    pipeline=PIPELINES[0],
    also=PIPELINES[1:],
    name="decode",
    path="/decode",
    summary="Decode tokens",
    request=DecodeRequest,
    result=DecodedTexts,
    example={"ids": [[12, 34, 56]]},
    direct=_decode,
)
TOKENIZE = Task(
    pipeline=PIPELINES[0],
    also=PIPELINES[1:],
    name="tokenize",
    path="/tokenize",
    summary="Tokenize a text or a conversation",
    request=TokenizePromptRequest,
    result=TokenizedPrompt,
    example={"prompt": "How do I bake bread?"},
    direct=_tokenize,
)
DETOKENIZE = Task(
    pipeline=PIPELINES[0],
    also=PIPELINES[1:],
    name="detokenize",
    path="/detokenize",
    summary="Turn tokens into text",
    request=DetokenizeRequest,
    result=DetokenizedPrompt,
    example={"tokens": [12, 34, 56]},
    direct=_detokenize,
)
