"""Runs any decoder language model with transformers, in batches that change between steps.

Sequences that draw a token are computed together. Their keys and values lie in one cache, padded on
the left, which is rebuilt only when a sequence joins or leaves. Prompts are computed separately.
Architectures with more than keys and values of all positions in their cache (sliding windows,
states) are computed one sequence at a time. A prompt with images is computed in one pass, because
the model itself defines its attention and positions. After that pass, the sequence is like any
other except for its positions.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stoker.models.adapters.applying import Adapters, LoadedAdapter
from stoker.models.engines.transfers import stream_of
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
from stoker.models.llm.engines.positions import PositionAxes, Positions, longest
from stoker.models.llm.interface import Features
from stoker.wire.protocol import Sharing

if TYPE_CHECKING:
    from stoker.models.llm.runner import Chunk

_BIASED = frozenset({"bloom", "mpt"})
"""Kinds that accept no positions but may be padded, because their biases are counted from the
mask.
"""
_IN_ONE_PIECE = frozenset({"falcon_mamba", "jamba", "mamba", "minimax", "zamba"})
"""Kinds with a state that continues by one token only. Their prompts are computed in one pass."""


@dataclass(eq=False)
class _Group:
    """Sequences with next tokens that are computed in one pass."""

    ids: list[int]
    lengths: list[int]
    """Tokens of each sequence in the cache."""
    shifts: list[int]
    """See `_Alone`."""
    cache: Any
    """Tensors per layer of shape (sequences, heads, width, size)."""
    ends: list[int] = field(default_factory=list[int])
    """Position in the cache after each sequence's last token. They differ only after guesses."""
    width: int = 0
    """Width of the cache in tokens."""

    def __post_init__(self) -> None:
        self.width = self.longest
        self.ends = [self.width] * len(self.ids)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def align(self) -> None:
        """Aligns the last tokens of all sequences again."""
        if any(end != self.width for end in self.ends):
            self.cache = kept(self.cache, [*range(len(self.ids))], self.lengths, self.ends)
            self.__post_init__()


@dataclass(eq=False)
class _Alone:
    """Sequence outside a group: its prompt is being computed, or its kind shares no cache."""

    cache: Any
    whole: int
    """Number of its tokens when it was admitted."""
    length: int = 0
    shift: int = 0
    """Difference between its positions and its length. An image may use fewer positions than it has
    tokens.
    """
    media: Features | None = None
    """Features of its images until they are computed."""
    held: list[int] = field(default_factory=list[int])
    """Tokens that wait to be computed with the following ones."""


class TorchRunner:
    """Implements `Runner` with transformers."""

    name = "torch"
    step_tokens: int | None = None

    def __init__(
        self, model: Any, *, threads: int, cache_bytes: int, adapters: Adapters | None = None
    ) -> None:
        """
        Args:
            model: transformers model with a language modelling head.
            adapters: adapters of the model.
            cache_bytes: maximum bytes of the caches of all sequences. One sequence of maximum
                length always has room.
        """
        self.model = model
        self.adapters = adapters
        self.sharing: Sharing | None = None
        """How sequences may be computed. None if that was not tested."""
        self._threads = threads
        text = model.config.get_text_config(decoder=True)
        self.max_length = longest(text)
        self.vocabulary = int(text.vocab_size)
        self._cache_bytes = cache_bytes
        self._footprint: Footprint | None = None
        """Cache size of sequences. Known after the first pass."""
        self._reserved: dict[int, int] = {}
        """Maps a sequence to its reserved tokens."""
        self._kinds: dict[int, int] = {}
        """Maps a sequence to its `Positions.kind`."""
        self._adapted: dict[int, LoadedAdapter] = {}
        """Maps a sequence to its adapter."""
        self._alone: dict[int, _Alone] = {}
        self._groups: dict[int, _Group] = {}
        """Maps a kind to its group."""
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        kinds = {model.config.model_type, text.model_type}
        self._shares = "position_ids" in self._accepted or not _BIASED.isdisjoint(kinds)
        self._in_one_piece = not _IN_ONE_PIECE.isdisjoint(kinds)
        self._is_plain = False
        """True if the cache consists of keys and values of all positions. Known after the first
        pass.
        """
        self._caches = Caches(model)
        self.rotary = Positions(model)
        self._axes = PositionAxes(model)

    def restrict(self, sharing: Sharing) -> None:
        """Restricts the computation of sequences to this mode."""
        self.sharing = sharing
        self._shares = self._shares and sharing is Sharing.PADDED
        self._in_one_piece = self._in_one_piece or sharing is Sharing.ONE_PIECE

    @property
    def can_retract(self) -> bool:
        return self._is_plain and not self._in_one_piece

    @torch.inference_mode()
    def direct(self, tokens: Sequence[int]) -> torch.Tensor:
        """Returns the model's own logits after a prompt: float32 (vocabulary)."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        return self.model(input_ids=ids).logits[0, -1].float()

    def enter_thread(self) -> None:
        # OpenMP stores the number per thread that opens parallel regions.
        torch.set_num_threads(self._threads)

    def admit(
        self,
        identifier: int,
        tokens: Sequence[int],
        media: Features | None = None,
        *,
        fresh: bool = False,
        adapter: LoadedAdapter | None = None,
    ) -> int | None:
        # This runner shares no computed tokens between sequences.
        self._reserved[identifier] = 0
        if not self.reserve(identifier, len(tokens)):
            del self._reserved[identifier]
            return None
        self._kinds[identifier] = self.rotary.kind(len(tokens))
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
        return self._kinds[identifier] != self.rotary.kind(length)

    def retract(self, identifier: int, length: int) -> None:
        if sequence := self._alone.get(identifier):
            cut(sequence.cache, sequence.length - length)
            sequence.length = length
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
            rows = [row for row, member in enumerate(group.ids) if member != identifier]
            if rows:
                self._groups[kind] = _without(group, rows)
            else:
                del self._groups[kind]

    def is_usable(self) -> bool:
        """Waits for the device. Returns False if the device can no longer compute."""
        return stream_of(self.model.device).is_usable()

    def rest(self) -> bool:
        return False

    @property
    def usage(self) -> float:
        return self._taken()

    def _taken(self, more: int = 0) -> float:
        """Returns the share of the cache that sequences hold, including `more` further tokens.

        Returns 0 while the cache size of a token is unknown.
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
        # Only sequences that draw continue with one token per step. A prompt's last piece may also
        # be one token.
        stepping = [
            piece
            for piece in chunks
            if len(piece.tokens) - piece.draft == 1 and piece.start > 0 and piece.sampled
        ]
        if self._shares and len(stepping) > 1:
            self._join(stepping)
        grouped = [piece for piece in stepping if piece.id not in self._alone]
        for kind, group in self._groups.items():
            if members := [piece for piece in grouped if self._kinds[piece.id] == kind]:
                with self._added(group.ids):
                    rows |= self._together(group, members)
        for chunk in chunks:
            if chunk.id in self._alone:
                with self._added([chunk.id]):
                    rows[chunk.id] = self._by_itself(chunk)
        sampled = [rows[chunk.id] for chunk in chunks if chunk.rows]
        if not sampled:
            return torch.empty(0, self.vocabulary, device=self.model.device)
        return torch.cat(sampled)

    def _added(self, ids: Sequence[int]) -> AbstractContextManager[None]:
        """Returns a context in which passes compute these sequences with their adapters."""
        if self.adapters is None:
            return nullcontext()
        return self.adapters.rows(self.model, [self._adapted.get(identifier) for identifier in ids])

    def _by_itself(self, chunk: "Chunk") -> torch.Tensor:
        sequence = self._alone[chunk.id]
        if self._in_one_piece:
            sequence.held += chunk.tokens
            if not chunk.sampled:
                return self._so_far(sequence, chunk.rows)
        tokens, sequence.held = sequence.held or list(chunk.tokens), []
        ids = torch.tensor([tokens], device=self.model.device)
        rows = chunk.rows or 1
        with self.rotary.of(sequence.whole):
            logits = (
                self._read(ids, sequence, rows)
                if sequence.media is None
                else self._see(ids, sequence)
            )
        sequence.length += ids.shape[1]
        if self._footprint is None:
            self._footprint = footprint(sequence.cache)
            self._is_plain = shareable(sequence.cache)
            self._shares = self._shares and self._is_plain
        return logits[0, -rows:]

    def _so_far(self, own: _Alone, rows: int) -> torch.Tensor:
        """Returns the logits after the last of the waiting tokens, from a pass over these alone."""
        if not rows:
            return torch.empty(0)
        ids = torch.tensor([own.held], device=self.model.device)
        with self.rotary.of(own.whole):
            return self.model(input_ids=ids).logits[0, -rows:].float()

    def _together(self, group: _Group, chunks: "Sequence[Chunk]") -> dict[int, torch.Tensor]:
        """Computes the next tokens of each sequence of a group. The chunks must cover the whole
        group.
        """
        new_tokens = {chunk.id: chunk.tokens for chunk in chunks}
        if set(new_tokens) != set(group.ids):
            raise RuntimeError("a step must contain every sequence of its group")
        group.align()
        device = self.model.device
        counts = [len(new_tokens[identifier]) for identifier in group.ids]
        most, longest = max(counts), group.longest
        # Sequences with fewer tokens are padded on the right. The mask hides the padding.
        tokens = [
            [*new_tokens[identifier], *[0] * (most - len(new_tokens[identifier]))]
            for identifier in group.ids
        ]
        lengths = torch.tensor(group.lengths, device=device)[:, None]
        news = torch.tensor(counts, device=device)[:, None]
        places = torch.arange(longest + most, device=device)
        mask = (places >= longest - lengths) & (places < longest + news)
        # Padding reuses the position of a token, because further positions may not exist.
        behind = torch.minimum(torch.arange(most, device=device), news - 1)
        positions = self._positions(lengths + behind, group.shifts)
        ids = torch.tensor(tokens, device=device)
        logits = self._run(ids, positions, group, {"attention_mask": mask.long()}, rows=most)
        group.lengths = [size + count for size, count in zip(group.lengths, counts, strict=True)]
        group.ends = [longest + count for count in counts]
        group.width = longest + most
        rows = zip(group.ids, logits, counts, strict=True)
        return {identifier: sequence_logits[:count] for identifier, sequence_logits, count in rows}

    def _read(self, ids: torch.Tensor, own: _Alone, rows: int) -> torch.Tensor:
        """Computes consecutive tokens of one sequence."""
        lengths = torch.arange(own.length, own.length + ids.shape[1], device=ids.device)
        return self._run(ids, self._positions(lengths[None], [own.shift]), own, rows=rows)

    def _see(self, ids: torch.Tensor, own: _Alone) -> torch.Tensor:
        """Computes a prompt with its images, and the shift of the positions after it."""
        model = self.model
        features = {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in (own.media or {}).items()
            if name in self._accepted
        }
        positions = self._axes.of_prompt(ids, features)
        logits = self._run(ids, positions, own, features)
        own.shift = self._axes.shift(positions)
        own.media = None
        return logits

    def _positions(self, lengths: torch.Tensor, shifts: Sequence[int]) -> torch.Tensor:
        """Returns the positions of tokens with `lengths` tokens before them."""
        shifted = lengths + torch.tensor(shifts, device=lengths.device)[:, None]
        return self._axes.of_text(lengths, shifted)

    def _run(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        of: _Alone | _Group,
        features: Mapping[str, torch.Tensor] = {},
        rows: int = 1,
    ) -> torch.Tensor:
        """Returns the logits after the last tokens of each sequence: float32 (sequences, rows,
        vocabulary).
        """
        name = self._caches.name
        options: dict[str, Any] = {name: of.cache, "use_cache": True, **features}
        if "position_ids" in self._accepted:
            options["position_ids"] = positions
        if "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = rows
        output = self.model(input_ids=ids, **options)
        if of.cache is None:
            of.cache = output[name]
        return output.logits[:, -rows:].float()

    def _join(self, chunks: "Sequence[Chunk]") -> None:
        """Moves sequences that begin to draw into the groups of their kinds."""
        joining = [entry.id for entry in chunks if entry.id in self._alone]
        for kind in {self._kinds[entry] for entry in joining}:
            ids = [entry for entry in joining if self._kinds[entry] == kind]
            members = [self._alone[entry] for entry in ids]
            caches = [entry.cache for entry in members]
            lengths = [entry.length for entry in members]
            shifts = [entry.shift for entry in members]
            if group := self._groups.get(kind):
                group.align()
                caches.insert(0, group.cache)
                ids = [*group.ids, *ids]
                lengths, shifts = [*group.lengths, *lengths], [*group.shifts, *shifts]
            self._groups[kind] = _Group(ids, lengths, shifts, merged(caches, max(lengths)))
        for entry in joining:
            del self._alone[entry]


def _without(group: _Group, rows: Sequence[int]) -> _Group:
    """Returns a group with only these rows."""
    lengths = [group.lengths[row] for row in rows]
    shifts = [group.shifts[row] for row in rows]
    ids = [group.ids[row] for row in rows]
    ends = [group.ends[row] for row in rows]
    return _Group(ids, lengths, shifts, kept(group.cache, rows, lengths, ends))


def load(folder: Path, dtype: torch.dtype, device: torch.device, kind: str = TEXT) -> Any:
    """Returns the folder's language model on its device.

    Args:
        kind: class of transformers that loads it.
    """
    return load_model(folder, kind, dtype=dtype).to(device).eval()
