"""Lists the tokens of prompts, and the text of tokens, of a language model."""

from typing import Any, cast

from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.stages import token_lists
from stoker.wire import sse
from stoker.wire.generation_request import Conversation, Generation, TokenListing


def content(prompts: Prompts, generation: Generation) -> bytes:
    """Returns the answer to a request for tokens or their text. Raises `InputError`."""
    listing = generation.listing or TokenListing(is_tei=False, special=True)
    read = _listed if generation.api == "tokenize" else _text
    answers = [
        read(prompts, generation, listing, index) for index in range(len(generation.prompts))
    ]
    return sse.encode(answers if listing.is_tei else answers[0])


def _listed(prompts: Prompts, generation: Generation, listing: TokenListing, index: int) -> Any:
    prompt = cast("str | Conversation", generation.prompts[index])
    tokenizer: Any = prompts.tokenizer
    if listing.is_tei:
        return token_lists.listed(tokenizer, str(prompt), special=listing.special)
    ids = prompts.tokens(prompt, generation.place(index), special=listing.special)
    return token_lists.tokenized(
        tokenizer, ids, prompts.max_length, with_strings=listing.with_strings
    )


def _text(prompts: Prompts, generation: Generation, listing: TokenListing, index: int) -> Any:
    ids = cast("list[int]", generation.prompts[index])
    tokenizer: Any = prompts.tokenizer
    token_lists.refuse_unknown(
        tokenizer, ids, prompts.vocabulary, field=generation.place(index), of_item=False
    )
    text = token_lists.decoded(tokenizer, ids, skip_special=not listing.special)
    return text if listing.is_tei else {"prompt": text}
