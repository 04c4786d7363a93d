"""Interface between the scheduler and an engine that only runs forward passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stoker.models.llm.interface import Features
from stoker.wire.protocol import Sharing

if TYPE_CHECKING:
    import torch

    from stoker.models.adapters.applying import Adapters, LoadedAdapter


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence that a forward pass computes."""

    id: int
    tokens: Sequence[int]
    start: int
    """Position of the first token. Equals the number of tokens in the cache."""
    sampled: bool
    """True if the logits after the last token are needed."""
    scored: bool = False
    """True if the logits after each token are needed."""
    draft: int = 0
    """Number of last tokens that are guesses. The logits after each of them, and after the token
    before them, are needed.
    """

    @property
    def rows(self) -> int:
        """Number of rows of logits that are needed."""
        return len(self.tokens) if self.scored else int(self.sampled) + self.draft

    @property
    def certain(self) -> int:
        """Number of leading tokens that are computed after this chunk, without the guess."""
        return self.start + len(self.tokens) - self.draft


class Runner(Protocol):
    """Model that computes chunks of sequences and keeps their keys and values."""

    name: str
    sharing: Sharing | None
    """How sequences may be computed. None if that was not tested."""
    max_length: int
    vocabulary: int
    adapters: "Adapters | None"
    """Adapters that sequences may use. None if the runner runs the model alone."""

    step_tokens: int | None
    """Maximum tokens of a forward pass. None: the scheduler's default."""

    @property
    def can_retract(self) -> bool:
        """True if the latest computed tokens can be dropped again. If False, no chunk has a
        draft.
        """
        ...

    def enter_thread(self) -> None:
        """Called once on the thread that calls the other methods."""
        ...

    def admit(
        self,
        identifier: int,
        tokens: Sequence[int],
        media: Features | None = None,
        *,
        fresh: bool = False,
        adapter: "LoadedAdapter | None" = None,
    ) -> int | None:
        """Admits a sequence and returns how many of its leading tokens are already computed. The
        number is less than all.

        Returns None if the cache has no room for it now.

        Args:
            media: features for the placeholders among the tokens. The tokens alone do not identify
                such sequences, so none of their tokens count as computed.
            fresh: if True, no token counts as computed, because all logits are needed.
            adapter: adapter of the sequence. Only for runners that have `adapters`.
        """
        ...

    def reserve(self, identifier: int, length: int) -> bool:
        """Reserves room for `length` tokens of a sequence. Returns False if the cache is full."""
        ...

    def outgrown(self, identifier: int, length: int) -> bool:
        """Returns True if a sequence of `length` tokens must be computed again from its first
        token.
        """
        ...

    def forward(self, chunks: Sequence[Chunk]) -> "torch.Tensor":
        """Returns the logits after each sampled chunk, float32 (rows, vocabulary), on the model's
        device.

        A scored chunk has a row for each of its tokens. For a chunk with a draft, see
        `Chunk.draft`. The result is valid until the next call.
        """
        ...

    def retract(self, identifier: int, length: int) -> None:
        """Keeps only the first `length` tokens of a sequence with a draft in its last chunk."""
        ...

    def release(self, identifier: int) -> None:
        """Removes a sequence."""
        ...

    def rest(self) -> bool:
        """Prepares faster passes while no sequence runs, for a fraction of a second. Returns True
        if more can be prepared.
        """
        ...

    @property
    def usage(self) -> float:
        """Share of the cache that sequences hold, 0 to 1."""
        ...
