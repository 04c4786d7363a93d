"""What the scheduler asks of an engine that only runs forward passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stoker.models.llm.interface import Features
from stoker.wire.protocol import Sharing

if TYPE_CHECKING:
    import torch

    from stoker.models.adapters.applying import Adapter, Adapters


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence that a forward pass computes."""

    id: int
    tokens: Sequence[int]
    start: int
    """Position of the first one: so many are in the cache."""
    sampled: bool
    """Whether the logits after the last one are wanted."""
    scored: bool = False
    """Whether those after each one are wanted."""
    draft: int = 0
    """So many of the last ones are a guess of what will be drawn. The logits after these are
    wanted, and those after the token before them."""

    @property
    def rows(self) -> int:
        """How many rows of logits are wanted."""
        return len(self.tokens) if self.scored else int(self.sampled) + self.draft

    @property
    def certain(self) -> int:
        """How many leading tokens of the sequence are computed once this is, but for the guess."""
        return self.start + len(self.tokens) - self.draft


class Runner(Protocol):
    """A model that computes chunks of sequences and keeps their keys and values."""

    name: str
    sharing: Sharing | None
    """What was found of how sequences may be computed; None: nobody has looked."""
    max_length: int
    vocabulary: int
    adapters: "Adapters | None"
    """Those that sequences may have; None: it runs the model alone."""

    @property
    def can_retract(self) -> bool:
        """Whether what was computed last can be dropped again. Without, no chunk has a draft."""
        ...

    def enter_thread(self) -> None:
        """Called once on the thread that will call the others."""
        ...

    def admit(
        self,
        identifier: int,
        tokens: Sequence[int],
        media: Features | None = None,
        *,
        anew: bool = False,
        adapter: "Adapter | None" = None,
    ) -> int | None:
        """Take a sequence: how many of its leading tokens are computed already, fewer than all.

        None where there is no room for it now.

        Args:
            media: what the placeholders among the tokens stand for. Tokens alone do not distinguish
                such sequences: none is computed already.
            anew: none is to be taken as computed: its logits are wanted.
            adapter: what is added to the model for it. Only for runners that have `adapters`.
        """
        ...

    def reserve(self, identifier: int, length: int) -> bool:
        """Have room for so many tokens of a sequence; False where there is none."""
        ...

    def outgrown(self, identifier: int, length: int) -> bool:
        """Whether a sequence, once it has so many tokens, is to be computed anew from its first."""
        ...

    def forward(self, chunks: Sequence[Chunk]) -> "torch.Tensor":
        """The logits after each sampled chunk, float32 (rows, vocabulary), on the CPU.

        Of a scored chunk, those after each of its tokens; of one with a draft, see there. They are
        the caller's until the next call.
        """
        ...

    def retract(self, identifier: int, length: int) -> None:
        """Keep so many leading tokens of a sequence whose last chunk had a draft, and no more."""
        ...

    def release(self, identifier: int) -> None:
        """Forget a sequence."""
        ...

    @property
    def usage(self) -> float:
        """The share of the cache that sequences hold, 0 to 1."""
        ...
