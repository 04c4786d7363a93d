"""Bytes of each token of a tokenizer, for llguidance and for log probabilities.

llguidance itself reads byte-level tokenizers and those with byte fallback. For others, this module
determines the bytes. If texts are the concatenation of their tokens' pieces, the text of a short
sequence shows the piece of its middle token. Tokenizers that join words by spaces have no pieces.

vLLM's child process imports this too. It may import only llguidance and tokenizers.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import llguidance.hf
from tokenizers import decoders

from stoker.models.llm.errors import FormError

WITHOUT_BYTES = (
    "this model's tokenizer joins its tokens with spaces, so a token does not "
    "represent fixed characters. Forms need a byte-level tokenizer, one with "
    "byte fallback, or one with spaces in its tokens, such as Unigram and BPE "
    "with a suffix. Describe the form in the prompt instead"
)
_FRAME_CHARS, _FRAMES = 3, 24
_TRIED, _TRIED_TOKENS = 200, 5


def from_tokenizer(tokenizer: Any, size: int, ends: Sequence[int]) -> llguidance.LLTokenizer:
    """Returns llguidance's tokenizer for a transformers tokenizer.

    Args:
        tokenizer: fast tokenizer of transformers.
        size: number of tokens to rule on, including tokens that the tokenizer lacks.
        ends: tokens by which the model ends its answer.

    Raises:
        FormError: the tokens do not represent bytes. The message continues the form's name.
    """
    eos = list(ends) or None
    try:
        return llguidance.hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=eos)
    except ValueError:
        # The error only means that llguidance does not know this kind.
        backend = tokenizer.backend_tokenizer
    texts = pieces(backend)
    if texts is None:
        raise FormError(f"cannot be enforced: {WITHOUT_BYTES}")
    table: Any = _TokenTable(backend, texts, ends)
    return llguidance.LLTokenizer(table, n_vocab=size, eos_token=eos or [table.eos_token_id])


def pieces(backend: Any) -> Mapping[int, str] | None:
    """Returns the text that each non-special token adds, independent of its position. None if it
    depends on the position.

    Args:
        backend: tokenizer of the `tokenizers` library.
    """
    if backend.decoder is None or isinstance(backend.decoder, decoders.WordPiece):
        # They put spaces between tokens, and the second one removes some of them again.
        return None
    special = {token for token, item in backend.get_added_tokens_decoder().items() if item.special}
    plain = [(text, token) for text, token in backend.get_vocab().items() if token not in special]
    frame = _frame(backend, [token for text, token in plain if len(text) <= _FRAME_CHARS])
    if frame is None:
        return None
    first, last = frame
    before, behind = _decoded(backend, [[first], [last]])
    tokens = sorted(token for _, token in plain)
    texts = _decoded(backend, [[first, token, last] for token in tokens])
    if not all(text.startswith(before) and text.endswith(behind) for text in texts):
        return None
    piece_of = {
        token: text[len(before) : len(text) - len(behind)]
        for token, text in zip(tokens, texts, strict=True)
    }
    chance = random.Random(0)  # noqa: S311 - tries, no secrets
    tries = [[chance.choice(tokens) for _ in range(_TRIED_TOKENS)] for _ in range(_TRIED)]
    whole = _decoded(backend, [[first, *item, last] for item in tries])
    joined = [before + "".join(piece_of[token] for token in item) + behind for item in tries]
    return piece_of if whole == joined else None


def _frame(backend: Any, tokens: Sequence[int]) -> tuple[int, int] | None:
    """Returns two tokens that are joined without anything between them."""
    candidates = sorted(tokens)[:_FRAMES]
    pairs = [(one, other) for one in candidates for other in candidates if one != other]
    alone = dict(zip(candidates, _decoded(backend, [[one] for one in candidates]), strict=True))
    together = _decoded(backend, [list(pair) for pair in pairs])
    for (one, other), text in zip(pairs, together, strict=True):
        ends = (alone[one], alone[other])
        if all(end and end == end.strip() and end.isascii() for end in ends) and text == "".join(
            ends
        ):
            return one, other
    return None


def _decoded(backend: Any, sequences: list[list[int]]) -> list[str]:
    return backend.decode_batch(sequences, skip_special_tokens=False) if sequences else []


class _TokenTable:
    """Implements llguidance's interface for a tokenizer's tokens (`TokenizerWrapper`)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, backend: Any, found: Mapping[int, str], ends: Sequence[int]) -> None:
        count = 1 + max(backend.get_vocab().values())
        names = {token: text for text, token in backend.get_vocab().items()}
        self.tokens = [
            found.get(token, names.get(token, f"<[{token}]>")).encode() for token in range(count)
        ]
        self.special_token_ids = [token for token in range(count) if token not in found]
        self.eos_token_id = next(iter(ends), self.special_token_ids[0] if found else 0)

        self._ids = {text: token for token, text in found.items() if text}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        """Returns tokens with pieces that form the text. The tokenizer itself might insert a space
        before it.
        """
        tokens: list[int] = []
        place = 0
        while place < len(text):
            sizes = range(min(self._longest, len(text) - place), 0, -1)
            size = next(
                (length for length in sizes if text[place : place + length] in self._ids), 0
            )
            if not size:
                break
            tokens.append(self._ids[text[place : place + size]])
            place += size
        return tokens
