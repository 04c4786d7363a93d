"""Compiles forms for one tokenizer, and follows them token by token (llguidance).

vLLM's child process imports this too: nothing here but llguidance, torch and what draws tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import llguidance
import torch

from stoker.models.llm.errors import FormError
from stoker.models.llm.token_table import from_tokenizer

UNWRITABLE = "this model's tokenizer has no token that an answer could begin with"
MAX_KEPT = 64
"""Compiled forms that are kept for the next request."""

# The defaults allow a step of seconds; whoever shares the batch would wait as long.
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=25_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


class Matcher:
    """How far one answer has come in its form."""

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
            grammar: the form, in llguidance's own JSON, for an engine that follows it by itself.
            after: the form begins behind this token; before it, anything goes.
            plain: as of `Matchers`, for such an engine.
        """
        self.grammar = grammar
        self.after = after
        self.plain = plain
        self._matcher = matcher
        self._waiting = after is not None
        self._bits = torch.zeros(-(-tokens // 32), dtype=torch.int32)

    def mask(self, logits: torch.Tensor) -> None:
        """Rule out, in place, the tokens that cannot come next.

        Args:
            logits: (vocabulary,), float32, on the CPU or a GPU.

        Raises:
            FormError: it asks for more work than a step may cost.
        """
        if self._waiting:
            return
        self._matcher.unsafe_compute_mask_ptr(self._bits.data_ptr(), self._bits.numel() * 4)
        if self._matcher.is_error():
            why = line(self._matcher.get_error())
            raise FormError(f"The form of the answer could not be followed: {why}.")
        allowed = _unpacked(self._bits)[: logits.numel()].to(logits.device)
        logits[: allowed.numel()].masked_fill_(~allowed, -torch.inf)
        logits[allowed.numel() :] = -torch.inf

    def consume(self, token: int) -> bool:
        """Note the token that was drawn; whether the form is complete and nothing can follow."""
        if self._waiting:
            self._waiting = token != self.after
            return False
        self._matcher.consume_token(token)
        # After an error it has stopped too; the next mask raises it.
        return self._matcher.is_stopped() and not self._matcher.is_error()


def _unpacked(bits: torch.Tensor) -> torch.Tensor:
    """One boolean a bit, the lowest first."""
    places = torch.arange(32, dtype=torch.int32)
    return ((bits[:, None] >> places) & 1).bool().flatten()


class Matchers:
    """Forms that were compiled for one tokenizer; the last ones are kept."""

    def __init__(
        self, tokenizer: Any, vocabulary: int, ends: Sequence[int], plain: Sequence[int] = ()
    ) -> None:
        """
        Args:
            tokenizer: of transformers, a fast one.
            vocabulary: width of the logits.
            ends: tokens by which the model ends its answer.
            plain: added tokens that are text like any other. llguidance takes all that look like
                `<…>` for special ones, which match no text.

        Raises:
            FormError: the tokenizer's tokens stand for no bytes.
        """
        self.plain = plain
        self.tokens = from_tokenizer(tokenizer, max(vocabulary, len(tokenizer)), ends)
        if plain:
            own: Any = _Tokens(self.tokens, frozenset(plain))
            self.tokens = llguidance.LLTokenizer(own, eos_token=self.tokens.eos_tokens)
        self._kept: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def matcher(self, grammar: str, after: int | None = None) -> Matcher:
        """The start of a form, given as llguidance's own JSON, behind a token where one is given.

        Raises `FormError`, whose message goes on from the form's name.
        """
        if (known := self._kept.get(grammar)) is None:
            known = llguidance.LLMatcher(self.tokens, grammar, log_level=0, limits=_LIMITS)
            if known.is_error():
                raise FormError(f"cannot be enforced: {line(known.get_error())}")
            # Computed here, beside the model's steps, because the first one costs most.
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
    """llguidance's `TokenizerWrapper`: another tokenizer's tokens, some of them as text."""

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
    """The first line of a library's message."""
    return (message.strip().splitlines() or [""])[0][:300].rstrip(".")
