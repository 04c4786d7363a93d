"""Interface between a language model and its replica: tokens in, tokens out, in steps.

A step is one forward pass over all running sequences. An engine with its own loop (vLLM) implements
`LanguageModel` directly. Engines that only run forward passes are `Runner`s, which `Scheduler`
turns into a `LanguageModel`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from stoker.base.fairness import Tier
from stoker.wire.generation_request import Sampling

if TYPE_CHECKING:
    import torch

    from stoker.models.adapters.applying import LoadedAdapter
    from stoker.models.llm.logit_rules import LogitRules
    from stoker.models.llm.matcher import Matcher

Features = Mapping[str, "torch.Tensor"]
"""Inputs of a vision model in addition to a prompt's tokens, by its names, such as
`pixel_values`.
"""
Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log probability of a token in the model's own distribution."""

    token: int
    value: float
    top: Sequence[tuple[int, float]] = ()
    """The likeliest tokens at its position with their log probabilities, in descending order."""


@dataclass(slots=True)
class Output:
    """Result of one step for one sequence. A step may return several outputs per sequence, one for
    each token.
    """

    id: int
    tokens: list[int]
    """Drawn tokens, without the token that ended the sequence."""
    logprobs: list[Logprob]
    """Log probability of each token, if requested."""
    finish: Finish | None = None
    cached: int = 0
    """Number of prompt tokens that were already computed. Reported once, with the first output."""
    error: str = ""
    """Reason why the sequence failed. No output follows."""
    form: bool = False
    """True if the requested form caused the failure."""
    prompt: list[Logprob] = field(default_factory=list[Logprob])
    """Log probabilities of the prompt's tokens from the second on, if requested. Reported as they
    are computed, before any later token.
    """
    end: Logprob | None = None
    """Log probability of the token that ended the sequence, if requested."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Sequence to be continued."""

    id: int
    prompt: Sequence[int]
    sampling: Sampling
    """Complete sampling options. The caller has filled in the model's defaults."""
    matcher: "Matcher | None" = None
    """Excludes tokens if the answer requires a form."""
    after: int | None = None
    """A sequence with the same prompt. This sequence waits for its computation and shares it."""
    media: Features | None = None
    """Features of the images for the prompt's placeholders. They are computed with the whole prompt
    at once.
    """
    key: str = ""
    """API key of the request. Different keys take turns."""
    tier: Tier = Tier.DEFAULT
    adapter: "LoadedAdapter | None" = None
    """Adapter that the model applies to the sequence."""
    rules: "LogitRules | None" = None
    """Rules of the model's generation_config.json. Only Stoker's scheduler applies them."""


class LanguageModel(Protocol):
    """Continues token sequences. Not thread-safe: one thread calls it."""

    @property
    def name(self) -> str:
        """Name of the engine that runs the model now."""
        ...

    @property
    def max_length(self) -> int:
        """Maximum tokens of a sequence, prompt and answer."""
        ...

    @property
    def vocabulary(self) -> int:
        """Width of the logits."""
        ...

    def enter_thread(self) -> None:
        """Called once on the thread that calls the other methods."""
        ...

    def submit(self, submission: Submission) -> None:
        """Adds a sequence. It takes part from the next step on."""
        ...

    def cancel(self, identifier: int) -> None:
        """Removes a sequence and frees its memory immediately. An unknown sequence is no error."""
        ...

    def step(self) -> list[Output] | None:
        """Runs one forward pass and returns its outputs. Waiting sequences may have none.

        Returns None if it was woken before a computation.
        """
        ...

    def wake(self) -> None:
        """Makes a `step` that only waits return, because news arrived. Callable from any thread."""
        ...

    def abandon(self, why: str) -> list[Output]:
        """Removes all running sequences after a failed step. Returns one output with the error for
        each.
        """
        ...

    @property
    def usage(self) -> float:
        """Share of the key-value cache that sequences hold, 0 to 1."""
        ...

    @property
    def speculated(self) -> tuple[int, int]:
        """Number of guessed and computed tokens, and how many of them were drawn."""
        ...

    @property
    def running(self) -> int:
        """Number of sequences that have not finished, including waiting ones."""
        ...

    @property
    def at_work(self) -> bool:
        """True if started work has not ended, including that of cancelled sequences.

        Readable from any thread.
        """
        ...

    @property
    def alive(self) -> bool:
        """False once the model can no longer compute."""
        ...

    @property
    def children(self) -> Sequence[int]:
        """IDs of the child processes that it started. Their memory counts as its own."""
        ...


@runtime_checkable
class Sleeper(Protocol):
    """Model that can move its GPU memory to main memory while no sequence runs.

    Its methods raise an error if the move fails. The process must be ended then.
    """

    @property
    def sleep_bytes(self) -> int | None:
        """Bytes of main memory that it needs while it sleeps. None if it cannot sleep."""
        ...

    def sleep(self) -> int:
        """Moves the memory. Returns the bytes that it still holds of each GPU, without CUDA's
        context.
        """
        ...

    def wake_up(self) -> None:
        """Moves the memory back."""
        ...


@runtime_checkable
class Resting(Protocol):
    """Model or runner that can prepare faster steps while no sequence runs."""

    def rest(self) -> bool:
        """Works for a fraction of a second. Returns True if more can be prepared."""
        ...
