"""`POST /tokenize`, `/detokenize` and `/decode`: tokens of texts, and texts of tokens.

`/tokenize` has TEI's form, with `inputs`, and vLLM's, with `prompt` or `messages`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, RootModel, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from stoker.base.errors import InvalidRequestError
from stoker.inference.forms import FormsRequest, by_fields
from stoker.inference.openai.items import served_only
from stoker.inference.openai.messages import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Message,
    Tool,
    check_images,
    checked_tools,
    for_template,
)
from stoker.inference.openai.prompting import TemplatedRequest
from stoker.inference.openai.sampling import ModelRequest
from stoker.inference.operation import WholeAnswer
from stoker.inference.session import CallSession
from stoker.inference.tasks import answering, check_inputs
from stoker.models.llm.model_types import IMAGE_TEXT_TO_TEXT
from stoker.models.tasks.base import TaskRequest
from stoker.models.tasks.field_checks import refusal
from stoker.models.tasks.other_servers import tokens
from stoker.models.tasks.other_servers.tokens import (
    DecodeRequest,
    DetokenizeRequest,
    ListTokensRequest,
    TokenizedPrompt,
    TokenizePromptRequest,
    TokenLists,
)
from stoker.models.tasks.registry import GENERATING
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.wire.generation_request import (
    Conversation,
    Generation,
    Prompt,
    Sampling,
    TokenListing,
    Tools,
)

PIPELINES = (*tokens.PIPELINES, *GENERATING)
_OWN_TEMPLATE = (
    "is not supported: a caller's template would run on the server. Use 'chat_template_kwargs' "
    "with the model's template, or render the prompt and send it as 'prompt'"
)


class TokenizeChatRequest(TemplatedRequest, ModelRequest):
    """Request for the tokens of a conversation, as vLLM defines it."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: list[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    add_generation_prompt: bool | None = Field(
        default=None,
        description="False: omit the tokens that begin an answer. Default: true.",
    )
    continue_final_message: bool = Field(
        default=False, description="End with the text of the last message."
    )
    add_special_tokens: bool = Field(
        default=False, description="Add special tokens in addition to those of the chat template."
    )
    return_token_strs: bool | None = Field(
        default=None, description="Return the tokens as texts, too."
    )
    chat_template: Annotated[SkipJsonSchema[None], served_only(why=_OWN_TEMPLATE)] = None

    checks_spelling = True

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            why = "must be false if 'continue_final_message' is true: no new message begins"
            raise refusal(why, "add_generation_prompt")
        return self

    def generation(self) -> Generation:
        """Returns the internal form. Raises `InvalidRequestError`."""
        conversation = Conversation(
            messages=for_template(self.messages),
            tools=Tools(functions=checked_tools(self.tools)) if self.tools else None,
            variables=self.chat_template_kwargs or {},
            begins_answer=self.add_generation_prompt is not False,
            continues=self.continue_final_message,
        )
        return _generation(
            "tokenize",
            [conversation],
            TokenListing(
                is_tei=False,
                special=self.add_special_tokens,
                with_strings=bool(self.return_token_strs),
            ),
        )


class TokenizeRequest(
    FormsRequest[
        Annotated[
            Annotated[ListTokensRequest, Tag("<inputs>")]
            | Annotated[TokenizePromptRequest, Tag("<prompt>")]
            | Annotated[TokenizeChatRequest, Tag("<messages>")],
            by_fields(
                {"inputs": "<inputs>", "prompt": "<prompt>", "messages": "<messages>"},
                default="<inputs>",
                must_be="an object with one of 'inputs', 'prompt' and 'messages'",
            ),
        ]
    ]
):
    forms = (ListTokensRequest, TokenizePromptRequest, TokenizeChatRequest)


class TokenizeAnswer(RootModel[TokenLists | TokenizedPrompt]):
    """The tokens of each text of `inputs`, or the tokens of a `prompt` or of `messages`."""


def _generation(
    api: Literal["tokenize", "detokenize"], prompts: list[Prompt], listing: TokenListing
) -> Generation:
    return Generation(api=api, prompts=prompts, sampling=Sampling(), listing=listing)


async def tokenize(
    session: CallSession, entry: DirectoryEntry, body: TokenizeRequest
) -> WholeAnswer:
    form = body.root
    if isinstance(form, TokenizeChatRequest):
        return await _talk(session, entry, form)
    if entry.pipeline not in GENERATING:
        task = tokens.LIST_TOKENS if isinstance(form, ListTokensRequest) else tokens.TOKENIZE
        return await answering(task)(session, entry, form)
    if isinstance(form, ListTokensRequest):
        if form.prompt_name:
            raise InvalidRequestError(
                f"'{entry.model}' has no prompts: leave 'prompt_name' out.", param="prompt_name"
            )
        listing = TokenListing(is_tei=True, special=form.add_special_tokens)
    else:
        listing = TokenListing(
            is_tei=False,
            special=form.add_special_tokens,
            with_strings=bool(form.return_token_strs),
        )
    return await _listed(session, entry, form, "tokenize", listing)


async def _talk(
    session: CallSession, entry: DirectoryEntry, form: TokenizeChatRequest
) -> WholeAnswer:
    if entry.pipeline not in GENERATING:
        raise InvalidRequestError(
            f"'{entry.model}' is deployed for {entry.pipeline} and has no chat template. Send the "
            "text as 'prompt' or 'inputs'.",
            param="messages",
        )
    generation = form.generation()
    check_images([*generation.media()], taken=entry.pipeline == IMAGE_TEXT_TO_TEXT)
    await session.collect(generation)
    return WholeAnswer(await session.run(entry, generation))


async def detokenize(
    session: CallSession, entry: DirectoryEntry, body: DetokenizeRequest
) -> WholeAnswer:
    if entry.pipeline not in GENERATING:
        return await answering(tokens.DETOKENIZE)(session, entry, body)
    listing = TokenListing(is_tei=False, special=True)
    return await _listed(session, entry, body, "detokenize", listing)


async def decode(session: CallSession, entry: DirectoryEntry, body: DecodeRequest) -> WholeAnswer:
    if entry.pipeline not in GENERATING:
        return await answering(tokens.DECODE)(session, entry, body)
    listing = TokenListing(is_tei=True, special=not body.skip_special_tokens)
    return await _listed(session, entry, body, "detokenize", listing)


async def _listed(
    session: CallSession,
    entry: DirectoryEntry,
    body: TaskRequest,
    api: Literal["tokenize", "detokenize"],
    listing: TokenListing,
) -> WholeAnswer:
    """Returns the answer of a language model, which has no stages."""
    items, _ = body.items()
    check_inputs(session.settings, body, items)
    return WholeAnswer(await session.run(entry, _generation(api, items, listing)))
