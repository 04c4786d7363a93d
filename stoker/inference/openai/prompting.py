"""Request fields that change how the prompt is built."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from stoker.models.tasks.field_checks import refusal
from stoker.wire import generation_request as wire
from stoker.wire.generation_request import Cut

MAX_VARIABLES_CHARS = 65_536
"""Maximum characters of `chat_template_kwargs` as JSON."""
_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
_RESERVED = {
    "messages": "use the field of that name",
    "tools": "use the field of that name",
    "documents": "use the field of that name",
    "add_generation_prompt": "use the field of that name",
    "continue_final_message": "use the field of that name",
    "chat_template": "the model's own template is used",
    **dict.fromkeys(
        ("conversations", "conversation", "self", "tokenize", "tokenizer", "padding", "truncation"),
        "the server uses the name itself",
    ),
    **dict.fromkeys(
        ("return_assistant_tokens_mask", "return_tensors", "return_dict", "tokenizer_kwargs"),
        "the server uses the name itself",
    ),
    **dict.fromkeys(
        ("raise_exception", "strftime_now", "range", "dict", "lipsum", "cycler", "joiner"),
        "templates have a function of that name",
    ),
    **dict.fromkeys(("namespace", "loop", "caller", "varargs", "kwargs"), "Jinja uses the name"),
}
"""Maps names of `chat_template_kwargs` that a caller may not set to the reason or the
alternative.
"""


def _bounded(given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        # Special tokens, such as `bos_token`, are set by the model.
        if name in _RESERVED or name.endswith(("_token", "_tokens")):
            raise refusal(f"may not be set: {_RESERVED.get(name, 'the model has it')}", name)
    try:
        size = len(json.dumps(given, allow_nan=False))
    except (ValueError, RecursionError):
        raise ValueError("must contain only JSON values that are not nested too deeply") from None
    if size > MAX_VARIABLES_CHARS:
        raise ValueError(f"has {size} characters of JSON; the limit is {MAX_VARIABLES_CHARS}")
    return given


Variables = Annotated[
    dict[Annotated[str, Field(pattern=_NAME)], Any],
    Field(max_length=wire.MAX_TEMPLATE_VARIABLES),
    AfterValidator(_bounded),
]
Documents = Annotated[
    list[
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=1 << 20)]],
            Field(max_length=16),
        ]
    ],
    Field(max_length=256),
]


class TemplatedRequest(BaseModel):
    """Request with a prompt that the model's chat template builds."""

    chat_template_kwargs: Variables | None = Field(
        default=None,
        description="Variables of the model's chat template, such as `enable_thinking`. "
        "A variable that the template does not read is rejected.",
    )


class PromptCutting(BaseModel):
    """Request with a prompt that may be truncated before the model reads it."""

    truncate_prompt_tokens: int | None = Field(
        default=None,
        ge=-1,
        le=1 << 20,
        description="Maximum tokens of a prompt to keep. -1: as many as the model has room for.",
    )
    truncation_side: Literal["left", "right"] | None = Field(
        default=None, description="Side that `truncate_prompt_tokens` cuts. Default: `left`."
    )

    @model_validator(mode="after")
    def _keeps_something(self) -> "PromptCutting":
        if self.truncate_prompt_tokens == 0:
            raise refusal("must be 1 or more, or -1", "truncate_prompt_tokens")
        if self.truncation_side is not None and self.truncate_prompt_tokens is None:
            raise refusal("needs 'truncate_prompt_tokens'", "truncation_side")
        return self

    def cut(self) -> Cut | None:
        if self.truncate_prompt_tokens is None:
            return None
        return Cut(tokens=self.truncate_prompt_tokens, side=self.truncation_side or "left")
