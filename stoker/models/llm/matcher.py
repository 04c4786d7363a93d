"""Compiles forms for one tokenizer, and matches answers with them token by token (llguidance).

vLLM's child process imports this too. It may import only llguidance, numpy, torch and the modules
that sample tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np
import torch

from stoker.models.llm.errors import FormError
from stoker.models.llm.token_edits import Array, exclude
from stoker.models.llm.token_table import from_tokenizer

UNWRITABLE = "this model's tokenizer has no token that an answer could begin with"
MAX_KEPT = 64
"""Maximum compiled forms that are kept for later requests."""

# The defaults allow a step of several seconds, which would delay all sequences of the batch.
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=25_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


class Matcher:
    """Progress of one answer through its form."""

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        tokens: int,
        grammar: str,
        after: int | None = None,
        plain: Sequence[int] = (),
    ) -> None:
        """
        Args:
            grammar: the form in llguidance's own JSON, for an engine that applies it itself.
            after: token after which the form begins. Before it, any token is allowed.
            plain: see `Matchers`, for such an engine.
        """
        self.grammar = grammar
        self.after = after
        self.plain = plain
        self._matcher = matcher
        self._waiting = after is not None
        self._bits = np.zeros(-(-tokens // 32), np.int32)

    def allowed(self) -> Array | None:
        """Returns the tokens that may come next: one bit per token, the lowest bit of a byte first.
        None if all may. Valid until the next call.

        Raises:
            FormError: the form requires more work than a step may cost.
        """
        if self._waiting:
            return None
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            why = line(self._matcher.get_error())
            raise FormError(f"The answer could not follow the requested form: {why}.")
        return self._bits.view(np.uint8)

    def mask(self, logits: torch.Tensor) -> None:
        """Excludes, in place, the tokens that cannot come next.

        Args:
            logits: (vocabulary,), float32, on any device.

        Raises:
            FormError: the form requires more work than a step may cost.
        """
        if (allowed := self.allowed()) is not None:
            exclude(logits[None], {0: allowed})

    def consume(self, token: int) -> bool:
        """Records a drawn token. Returns True if the form is complete and nothing can follow."""
        if self._waiting:
            self._waiting = token != self.after
            return False
        self._matcher.consume_token(token)
        # The matcher also stops after an error. The next mask raises that error.
        return self._matcher.is_stopped() and not self._matcher.is_error()


class Matchers:
    """Compiled forms of one tokenizer. The latest ones are kept."""

    def __init__(
        self, tokenizer: Any, vocabulary: int, ends: Sequence[int], plain: Sequence[int] = ()
    ) -> None:
        """
        Args:
            tokenizer: fast tokenizer of transformers.
            vocabulary: width of the logits.
            ends: tokens by which the model ends its answer.
            plain: added tokens that are ordinary text. llguidance treats all tokens that look like
                `<…>` as special ones, which match no text.

        Raises:
            FormError: the tokenizer's tokens do not represent bytes.
        """
        self.plain = plain
        self.tokens = from_tokenizer(tokenizer, max(vocabulary, len(tokenizer)), ends)
        if plain:
            wrapper: Any = _Tokens(self.tokens, frozenset(plain))
            self.tokens = llguidance.LLTokenizer(wrapper, eos_token=self.tokens.eos_tokens)
        self._kept: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def matcher(self, grammar: str, after: int | None = None) -> Matcher:
        """Returns a matcher at the start of a form in llguidance's own JSON. With `after`, the form
        begins after that token.

        Raises `FormError` with a message that continues the form's name.
        """
        if (known := self._kept.get(grammar)) is None:
            known = llguidance.LLMatcher(self.tokens, grammar, log_level=0, limits=_LIMITS)
            if known.is_error():
                raise FormError(f"cannot be enforced: {line(known.get_error())}")
            # Computed here, in parallel with the model's steps, because the first mask costs most.
            bits = known.compute_bitmask()
            if known.is_error():
                raise FormError(f"is too complex: {line(known.get_error())}")
            if not any(bits):
                raise FormError(f"cannot be enforced: {UNWRITABLE}")
            self._kept[grammar] = known
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar)
        return Matcher(known.deep_copy(), self.tokens.vocab_size, grammar, after, self.plain)


class _Tokens:
    """llguidance's `TokenizerWrapper` of another tokenizer's tokens, with some of them as text."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, given: llguidance.LLTokenizer, plain: frozenset[int]) -> None:
        self._given = given
        self.eos_token_id = given.eos_token
        every = range(given.vocab_size)
        self.tokens = [given.decode_bytes([token]) for token in every]
        self.special_token_ids = [
            token for token in every if given.is_special_token(token) and token not in plain
        ]

    def __call__(self, text: str) -> list[int]:
        return self._given.tokenize_str(text)


def line(message: str) -> str:
    """Returns the first line of a library's message."""
    return (message.strip().splitlines() or [""])[0][:300].rstrip(".")
