"""Runs any decoder language model with transformers, in batches that change between steps.

Sequences that draw a token are computed together: their keys and values lie in one cache, padded on
the left. It is rebuilt only when a sequence joins or leaves. Prompts are computed by themselves.
Architectures whose cache is more than keys and values of all positions (sliding windows, states)
are computed one sequence at a time. A prompt with images is computed in one pass: how its tokens
attend to one another and where they stand is the model's own. From then on the sequence is like any
other, but for its positions.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stoker.models.adapters.applying import Adapter, Adapters
from stoker.models.llm.checkpoint import TEXT, load_model
from stoker.models.llm.engines.caches import (
    Caches,
    Footprint,
    cut,
    footprint,
    kept,
    merged,
    shareable,
)
from stoker.models.llm.engines.positions import Positions, longest
from stoker.models.llm.interface import Features
from stoker.wire.protocol import Sharing

if TYPE_CHECKING:
    from stoker.models.llm.runner import Chunk

_BIASED = frozenset({"bloom", "mpt"})
"""Kinds that take no positions and yet may be padded: their biases count from the mask."""
_IN_ONE_PIECE = frozenset({"falcon_mamba", "jamba", "mamba", "minimax", "zamba"})
"""Kinds whose state goes on by one token only: their prompts are computed in one pass."""


@dataclass(eq=False)
class _Group:
    """Sequences whose next tokens are computed in one pass."""

    ids: list[int]
    lengths: list[int]
    """Tokens of each in the cache."""
    shifts: list[int]
    """See `_Alone`."""
    cache: Any
    """Of shape (sequences, heads, width, size) a layer."""
    ends: list[int] = field(default_factory=list[int])
    """The place in the cache behind each one's last token: all the same but after guesses."""
    width: int = 0
    """Of the cache, tokens."""

    def __post_init__(self) -> None:
        self.width = self.longest
        self.ends = [self.width] * len(self.ids)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def align(self) -> None:
        """Put the last tokens of all below one another again."""
        if any(end != self.width for end in self.ends):
            self.cache = kept(self.cache, [*range(len(self.ids))], self.lengths, self.ends)
            self.__post_init__()


@dataclass(eq=False)
class _Alone:
    """A sequence that is not in a group: at its prompt, or of a kind that shares no cache."""

    cache: Any
    whole: int
    """Its tokens when it was admitted."""
    length: int = 0
    shift: int = 0
    """What its positions are beyond its length: an image may take fewer than it has tokens."""
    media: Features | None = None
    """Until they are computed."""
    held: list[int] = field(default_factory=list[int])
    """Tokens that wait to be computed with those that follow."""


class TorchRunner:
    """See `Runner`."""

    name = "torch"

    def __init__(
        self, model: Any, *, threads: int, cache_bytes: int, adapters: Adapters | None = None
    ) -> None:
        """
        Args:
            model: of transformers, with a language modelling head.
            adapters: those of the model.
            cache_bytes: most that the caches of all sequences together may take; a sequence of full
                length has room in any case.
        """
        self.model = model
        self.adapters = adapters
        self.sharing: Sharing | None = None
        """What was found of it; None: nobody has looked."""
        self._threads = threads
        text = model.config.get_text_config(decoder=True)
        self.max_length = longest(text)
        self.vocabulary = int(text.vocab_size)
        self._cache_bytes = cache_bytes
        self._footprint: Footprint | None = None
        """Known from the first pass on."""
        self._reserved: dict[int, int] = {}
        """Sequence → tokens."""
        self._kinds: dict[int, int] = {}
        """Sequence → `Positions.kind`."""
        self._adapted: dict[int, Adapter] = {}
        """Sequence → what is added to the model for it."""
        self._alone: dict[int, _Alone] = {}
        self._groups: dict[int, _Group] = {}
        """By kind."""
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        kinds = {model.config.model_type, text.model_type}
        self._shares = "position_ids" in self._accepted or not _BIASED.isdisjoint(kinds)
        self._in_one_piece = not _IN_ONE_PIECE.isdisjoint(kinds)
        self._is_plain = False
        """Whether its cache is keys and values of all positions; known from the first pass on."""
        self._caches = Caches(model)
        self._rotary = Positions(model)
        self._axes = self._positions_of(torch.zeros(1, 1, dtype=torch.long), {}).shape[:-2]

    def restrict(self, sharing: Sharing) -> None:
        """Compute sequences in no other way than this."""
        self.sharing = sharing
        self._shares = self._shares and sharing is Sharing.PADDED
        self._in_one_piece = self._in_one_piece or sharing is Sharing.ONE_PIECE

    @property
    def can_retract(self) -> bool:
        return self._is_plain and not self._in_one_piece

    @torch.inference_mode()
    def direct(self, tokens: Sequence[int]) -> torch.Tensor:
        """The logits after a prompt, by the model itself: float32 (vocabulary), on the CPU."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        return self.model(input_ids=ids).logits[0, -1].float().cpu()

    def enter_thread(self) -> None:
        # OpenMP keeps the number for each thread that opens parallel regions.
        torch.set_num_threads(self._threads)

    def admit(
        self,
        identifier: int,
        tokens: Sequence[int],
        media: Features | None = None,
        *,
        anew: bool = False,
        adapter: Adapter | None = None,
    ) -> int | None:
        # No sequence finds anything computed here.
        self._reserved[identifier] = 0
        if not self.reserve(identifier, len(tokens)):
            del self._reserved[identifier]
            return None
        self._kinds[identifier] = self._rotary.kind(len(tokens))
        if adapter:
            self._adapted[identifier] = adapter
        self._alone[identifier] = _Alone(self._caches.empty(), len(tokens), media=media)
        return 0

    def reserve(self, identifier: int, length: int) -> bool:
        if self._taken(length - self._reserved[identifier]) > 1:
            return False
        self._reserved[identifier] = length
        return True

    def outgrown(self, identifier: int, length: int) -> bool:
        return self._kinds[identifier] != self._rotary.kind(length)

    def retract(self, identifier: int, length: int) -> None:
        if own := self._alone.get(identifier):
            cut(own.cache, own.length - length)
            own.length = length
            return
        group = self._groups[self._kinds[identifier]]
        row = group.ids.index(identifier)
        group.ends[row] -= group.lengths[row] - length
        group.lengths[row] = length

    def release(self, identifier: int) -> None:
        self._reserved.pop(identifier, None)
        self._alone.pop(identifier, None)
        self._adapted.pop(identifier, None)
        kind = self._kinds.pop(identifier, 0)
        group = self._groups.get(kind)
        if group and identifier in group.ids:
            rows = [row for row, one in enumerate(group.ids) if one != identifier]
            if rows:
                self._groups[kind] = _without(group, rows)
            else:
                del self._groups[kind]

    @property
    def usage(self) -> float:
        return self._taken()

    def _taken(self, more: int = 0) -> float:
        """The share of the cache that sequences have, with so many tokens more.

        Nothing while it is unknown what they take.
        """
        size = self._footprint
        if size is None:
            return 0.0
        tokens = sum(self._reserved.values()) + more
        room = max(self._cache_bytes, size.of(1, self.max_length))
        return size.of(len(self._reserved), tokens) / room

    @torch.inference_mode()
    def forward(self, chunks: "Sequence[Chunk]") -> torch.Tensor:
        rows: dict[int, torch.Tensor] = {}
        # Only who draws goes on with one token a step; a prompt's last piece may be as short.
        stepping = [
            one
            for one in chunks
            if len(one.tokens) - one.draft == 1 and one.start > 0 and one.sampled
        ]
        if self._shares and len(stepping) > 1:
            self._join(stepping)
        grouped = [one for one in stepping if one.id not in self._alone]
        for kind, group in self._groups.items():
            if members := [one for one in grouped if self._kinds[one.id] == kind]:
                with self._added(group.ids):
                    rows |= self._together(group, members)
        for chunk in chunks:
            if chunk.id in self._alone:
                with self._added([chunk.id]):
                    rows[chunk.id] = self._by_itself(chunk)
        found = [rows[chunk.id] for chunk in chunks if chunk.rows]
        return torch.cat(found) if found else torch.empty(0, self.vocabulary)

    def _added(self, ids: Sequence[int]) -> AbstractContextManager[None]:
        """Have passes be those of these sequences, with what is added to the model for each."""
        if self.adapters is None:
            return nullcontext()
        return self.adapters.rows(self.model, [self._adapted.get(one) for one in ids])

    def _by_itself(self, chunk: "Chunk") -> torch.Tensor:
        own = self._alone[chunk.id]
        if self._in_one_piece:
            own.held += chunk.tokens
            if not chunk.sampled:
                return self._so_far(own, chunk.rows)
        tokens, own.held = own.held or list(chunk.tokens), []
        ids = torch.tensor([tokens], device=self.model.device)
        rows = chunk.rows or 1
        with self._rotary.of(own.whole):
            found = self._read(ids, own, rows) if own.media is None else self._see(ids, own)
        own.length += ids.shape[1]
        if self._footprint is None:
            self._footprint = footprint(own.cache)
            self._is_plain = shareable(own.cache)
            self._shares = self._shares and self._is_plain
        return found[0, -rows:]

    def _so_far(self, own: _Alone, rows: int) -> torch.Tensor:
        """Logits after the last of the tokens that wait: computed for these alone."""
        if not rows:
            return torch.empty(0)
        ids = torch.tensor([own.held], device=self.model.device)
        with self._rotary.of(own.whole):
            return self.model(input_ids=ids).logits[0, -rows:].float().cpu()

    def _together(self, group: _Group, chunks: "Sequence[Chunk]") -> dict[int, torch.Tensor]:
        """The next tokens of each sequence of a group; all of the group are among the chunks."""
        given = {chunk.id: chunk.tokens for chunk in chunks}
        if set(given) != set(group.ids):
            raise RuntimeError("a step leaves out a sequence that is drawing")
        group.align()
        device = self.model.device
        counts = [len(given[one]) for one in group.ids]
        most, longest = max(counts), group.longest
        # Those that have fewer are padded on the right, with what the mask leaves out.
        tokens = [[*given[one], *[0] * (most - len(given[one]))] for one in group.ids]
        lengths = torch.tensor(group.lengths, device=device)[:, None]
        news = torch.tensor(counts, device=device)[:, None]
        places = torch.arange(longest + most, device=device)
        mask = (places >= longest - lengths) & (places < longest + news)
        # Padding stands where a token does: there may be no further position.
        behind = torch.minimum(torch.arange(most, device=device), news - 1)
        positions = self._positions(lengths + behind, group.shifts)
        ids = torch.tensor(tokens, device=device)
        found = self._run(ids, positions, group, {"attention_mask": mask.long()}, rows=most)
        group.lengths = [size + count for size, count in zip(group.lengths, counts, strict=True)]
        group.ends = [longest + count for count in counts]
        group.width = longest + most
        rows = zip(group.ids, found, counts, strict=True)
        return {one: own[:count] for one, own, count in rows}

    def _read(self, ids: torch.Tensor, own: _Alone, rows: int) -> torch.Tensor:
        """Compute tokens that stand behind one another."""
        lengths = torch.arange(own.length, own.length + ids.shape[1], device=ids.device)
        return self._run(ids, self._positions(lengths[None], [own.shift]), own, rows=rows)

    def _see(self, ids: torch.Tensor, own: _Alone) -> torch.Tensor:
        """Compute a prompt with its images, and how far it moves what comes after it."""
        model = self.model
        features = {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in (own.media or {}).items()
            if name in self._accepted
        }
        positions = self._positions_of(ids, features)
        found = self._run(ids, positions, own, features)
        # With several axes, the first counts the tokens.
        placed = positions[1:] if self._axes else positions
        own.shift = int(placed.max()) + 1 - ids.shape[1]
        own.media = None
        return found

    def _positions_of(self, ids: torch.Tensor, features: Mapping[str, torch.Tensor]) -> Any:
        """Where `generate` puts the tokens of a prompt: ([axes,] rows, tokens)."""
        return self.model._prepare_position_ids_for_generation(ids, {"input_ids": ids, **features})

    def _positions(self, lengths: torch.Tensor, shifts: Sequence[int]) -> torch.Tensor:
        """Where tokens stand that come after so many others."""
        moved = lengths + torch.tensor(shifts, device=lengths.device)[:, None]
        if not self._axes:
            return moved
        return torch.stack([lengths, *[moved] * (self._axes[0] - 1)])

    def _run(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        of: _Alone | _Group,
        features: Mapping[str, torch.Tensor] = {},
        rows: int = 1,
    ) -> torch.Tensor:
        """Logits after the last tokens of each sequence, float32 (sequences, rows, vocabulary), on
        the CPU.
        """
        name = self._caches.name
        options: dict[str, Any] = {name: of.cache, "use_cache": True, **features}
        if "position_ids" in self._accepted:
            options["position_ids"] = positions
        if "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = rows
        found = self.model(input_ids=ids, **options)
        if of.cache is None:
            of.cache = found[name]
        return found.logits[:, -rows:].float().cpu()

    def _join(self, chunks: "Sequence[Chunk]") -> None:
        """Move sequences that begin to draw into the groups of their kinds."""
        joining = [one.id for one in chunks if one.id in self._alone]
        for kind in {self._kinds[one] for one in joining}:
            ids = [one for one in joining if self._kinds[one] == kind]
            members = [self._alone[one] for one in ids]
            caches = [one.cache for one in members]
            lengths = [one.length for one in members]
            shifts = [one.shift for one in members]
            if group := self._groups.get(kind):
                group.align()
                caches.insert(0, group.cache)
                ids = [*group.ids, *ids]
                lengths, shifts = [*group.lengths, *lengths], [*group.shifts, *shifts]
            self._groups[kind] = _Group(ids, lengths, shifts, merged(caches, max(lengths)))
        for one in joining:
            del self._alone[one]


def _without(group: _Group, rows: Sequence[int]) -> _Group:
    """A group of which only some rows are left."""
    lengths = [group.lengths[row] for row in rows]
    shifts = [group.shifts[row] for row in rows]
    ids = [group.ids[row] for row in rows]
    ends = [group.ends[row] for row in rows]
    return _Group(ids, lengths, shifts, kept(group.cache, rows, lengths, ends))


def load(folder: Path, dtype: torch.dtype, device: torch.device, kind: str = TEXT) -> Any:
    """The folder's language model, on its device.

    Args:
        kind: transformers' class that loads it.
    """
    return load_model(folder, kind, dtype=dtype).to(device).eval()
