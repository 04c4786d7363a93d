"""What a language model does for a replica: tokens in, tokens out, in steps.

One step is one forward pass over whatever is running. An engine with a loop of its own (vLLM) is a
`LanguageModel`; those that only run forward passes are `Runner`s, which `Scheduler` makes one of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from stoker.wire.generation_request import Sampling

if TYPE_CHECKING:
    import torch

    from stoker.models.adapters.applying import Adapter
    from stoker.models.llm.logit_rules import LogitRules
    from stoker.models.llm.matcher import Matcher

Features = Mapping[str, "torch.Tensor"]
"""What a vision model takes beside a prompt's tokens, by its names, such as `pixel_values`."""
Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability, natural, of a token by the model's own distribution."""

    token: int
    value: float
    top: Sequence[tuple[int, float]] = ()
    """The likeliest tokens in its place, falling."""


@dataclass(slots=True)
class Output:
    """What one step gave one sequence: where it gave several tokens, there is one of each."""

    id: int
    tokens: list[int]
    """Without the token that ended it."""
    logprobs: list[Logprob]
    """One a token, where they were asked for."""
    finish: Finish | None = None
    cached: int = 0
    """Tokens of the prompt that were found computed; reported once, with the first output."""
    error: str = ""
    """Why it failed; nothing more will come."""
    form: bool = False
    """Whether the form that was asked for is why."""
    prompt: list[Logprob] = field(default_factory=list[Logprob])
    """Of the prompt's tokens, from the second on, as they are computed: where they were asked for,
    and before anything that comes after them."""
    end: Logprob | None = None
    """Of the token that ended it, where they were asked for."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A sequence to be continued."""

    id: int
    prompt: Sequence[int]
    sampling: Sampling
    """Without open choices: whoever submits has filled in the model's own."""
    matcher: "Matcher | None" = None
    """Rules out tokens, where the answer has to have a form."""
    after: int | None = None
    """A sequence with the same prompt, whose computation this one waits for and shares."""
    media: Features | None = None
    """Of the images whose placeholders the prompt has: they are computed with all of it at once."""
    key: str = ""
    """The API key that asked for it: those of different ones take turns."""
    adapter: "Adapter | None" = None
    """What is to be added to the model for it."""
    rules: "LogitRules | None" = None
    """Those of the model's own generation_config.json; only our scheduler applies them."""


class LanguageModel(Protocol):
    """Continues token sequences. Not thread-safe: one thread calls it."""

    @property
    def name(self) -> str:
        """What runs the model now."""
        ...

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence, prompt and answer."""
        ...

    @property
    def vocabulary(self) -> int:
        """Width of the logits."""
        ...

    def enter_thread(self) -> None:
        """Called once on the thread that will call the others."""
        ...

    def submit(self, submission: Submission) -> None:
        """Add a sequence; it takes part from the next step on."""
        ...

    def cancel(self, identifier: int) -> None:
        """Forget a sequence and free what it holds, at once; an unknown one is no error."""
        ...

    def step(self) -> list[Output] | None:
        """Run one forward pass and return what it gave; waiting sequences may get nothing.

        None: it was woken before anything was computed.
        """
        ...

    def wake(self) -> None:
        """From any thread: have a `step` that only waits return, because there is news for it."""
        ...

    def abandon(self, why: str) -> list[Output]:
        """Forget all that is running, after a step has failed: one output each, with the error."""
        ...

    @property
    def usage(self) -> float:
        """The share of the key-value cache that sequences hold, 0 to 1."""
        ...

    @property
    def speculated(self) -> tuple[int, int]:
        """Tokens that were guessed and computed, and those of them that were drawn."""
        ...

    @property
    def running(self) -> int:
        """Sequences that have not finished, waiting ones included."""
        ...

    @property
    def at_work(self) -> bool:
        """Whether it has begun anything that it has not left, of cancelled sequences, too.

        Read from any thread.
        """
        ...

    @property
    def alive(self) -> bool:
        """False once it cannot compute anything any more."""
        ...

    @property
    def children(self) -> Sequence[int]:
        """Processes that it has started, whose memory is its own."""
        ...
