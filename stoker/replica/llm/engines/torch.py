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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from stoker.replica.llm.files import TEXT, load_model
from stoker.replica.llm.interface import Features

if TYPE_CHECKING:
    from stoker.replica.llm.scheduler import Chunk


@dataclass(eq=False)
class _Group:
    """Sequences whose next tokens are computed in one pass."""

    ids: list[int]
    lengths: list[int]
    """Tokens of each in the cache."""
    shifts: list[int]
    """See `_Alone`."""
    cache: Any
    """Of shape (sequences, heads, longest, size) a layer."""

    @property
    def longest(self) -> int:
        return max(self.lengths)


@dataclass(eq=False)
class _Alone:
    """A sequence that is not in the group: at its prompt, or of a kind that shares no cache."""

    cache: Any
    length: int = 0
    shift: int = 0
    """What its positions are beyond its length: an image may take fewer than it has tokens."""
    media: Features | None = None
    """Until they are computed."""


class TorchRunner:
    """See `Runner`."""

    name = "torch"

    def __init__(self, model: Any, *, threads: int, cache_tokens: int) -> None:
        """
        Args:
            model: of transformers, with a language modelling head.
            cache_tokens: most tokens that all sequences together may have.
        """
        self._model = model
        self._threads = threads
        text = model.config.get_text_config(decoder=True)
        self.max_length = int(text.max_position_embeddings)
        self.vocabulary = int(text.vocab_size)
        self._cache_tokens = max(cache_tokens, self.max_length)
        self._reserved: dict[int, int] = {}
        self._alone: dict[int, _Alone] = {}
        self._group: _Group | None = None
        self._shares = True
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        self._axes = self._positions_of(torch.zeros(1, 1, dtype=torch.long), {}).shape[:-2]

    def enter_thread(self) -> None:
        # OpenMP keeps the number for each thread that opens parallel regions.
        torch.set_num_threads(self._threads)

    def admit(
        self, identifier: int, tokens: Sequence[int], media: Features | None = None
    ) -> int | None:
        self._reserved[identifier] = 0
        if not self.reserve(identifier, len(tokens)):
            del self._reserved[identifier]
            return None
        cache = DynamicCache(config=self._model.config)
        self._alone[identifier] = _Alone(cache, media=media)
        return 0

    def reserve(self, identifier: int, length: int) -> bool:
        others = sum(self._reserved.values()) - self._reserved[identifier]
        if others + length > self._cache_tokens:
            return False
        self._reserved[identifier] = length
        return True

    def release(self, identifier: int) -> None:
        self._reserved.pop(identifier, None)
        self._alone.pop(identifier, None)
        group = self._group
        if group and identifier in group.ids:
            kept = [place for place, one in enumerate(group.ids) if one != identifier]
            self._group = _kept(group, kept) if kept else None

    @property
    def usage(self) -> float:
        return sum(self._reserved.values()) / self._cache_tokens

    @torch.inference_mode()
    def forward(self, chunks: "Sequence[Chunk]") -> torch.Tensor:
        rows: dict[int, torch.Tensor] = {}
        # Only who draws goes on with one token a step; a prompt's last piece may be as short.
        stepping = [one for one in chunks if len(one.tokens) == 1 and one.start > 0 and one.sampled]
        if self._shares and len(stepping) > 1:
            self._join(stepping)
        grouped = [one for one in stepping if one.id not in self._alone]
        if grouped:
            rows |= self._together(grouped)
        for chunk in chunks:
            if chunk.id in self._alone:
                rows[chunk.id] = self._by_itself(chunk)
        found = [rows[chunk.id] for chunk in chunks if chunk.sampled]
        return torch.stack(found) if found else torch.empty(0, self.vocabulary)

    def _by_itself(self, chunk: "Chunk") -> torch.Tensor:
        own = self._alone[chunk.id]
        ids = torch.tensor([list(chunk.tokens)], device=self._model.device)
        if own.media is None:
            lengths = torch.arange(own.length, own.length + ids.shape[1], device=ids.device)
            found = self._run(ids, self._positions(lengths[None], [own.shift]), own.cache)
        else:
            found = self._see(ids, own)
        own.length += ids.shape[1]
        if self._shares and not all(type(one) is DynamicLayer for one in own.cache.layers):
            self._shares = False
        return found[0]

    def _together(self, chunks: "Sequence[Chunk]") -> dict[int, torch.Tensor]:
        """One token of each sequence of the group; all of the group are among the chunks."""
        group = self._group
        given = {chunk.id: chunk.tokens[0] for chunk in chunks}
        if group is None or set(given) != set(group.ids):
            raise RuntimeError("a step leaves out a sequence that is drawing")
        device = self._model.device
        ids = torch.tensor([[given[one]] for one in group.ids], device=device)
        lengths = torch.tensor(group.lengths, device=device)
        places = torch.arange(group.longest + 1, device=device)
        mask = (places[None, :] >= group.longest - lengths[:, None]).long()
        positions = self._positions(lengths[:, None], group.shifts)
        found = self._run(ids, positions, group.cache, {"attention_mask": mask})
        group.lengths = [length + 1 for length in group.lengths]
        return dict(zip(group.ids, found, strict=True))

    def _see(self, ids: torch.Tensor, own: _Alone) -> torch.Tensor:
        """Compute a prompt with its images, and how far it moves what comes after it."""
        model = self._model
        features = {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in (own.media or {}).items()
            if name in self._accepted
        }
        positions = self._positions_of(ids, features)
        found = self._run(ids, positions, own.cache, features)
        # With several axes, the first counts the tokens.
        placed = positions[1:] if self._axes else positions
        own.shift = int(placed.max()) + 1 - ids.shape[1]
        own.media = None
        return found

    def _positions_of(self, ids: torch.Tensor, features: Mapping[str, torch.Tensor]) -> Any:
        """Where `generate` puts the tokens of a prompt: ([axes,] rows, tokens)."""
        return self._model._prepare_position_ids_for_generation(ids, {"input_ids": ids, **features})

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
        cache: Any,
        features: Mapping[str, torch.Tensor] = {},
    ) -> torch.Tensor:
        """Logits after the last token of each row, float32 (rows, vocabulary), on the CPU."""
        options: dict[str, Any] = {"past_key_values": cache, "use_cache": True, **features}
        if "position_ids" in self._accepted:
            options["position_ids"] = positions
        if "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = 1
        return self._model(input_ids=ids, **options).logits[:, -1].float().cpu()

    def _join(self, chunks: "Sequence[Chunk]") -> None:
        """Move sequences that begin to draw into the group."""
        joining = [one.id for one in chunks if one.id in self._alone]
        if not joining:
            return
        members = [self._alone.pop(one) for one in joining]
        caches = [one.cache for one in members]
        lengths = [one.length for one in members]
        shifts = [one.shift for one in members]
        if group := self._group:
            caches.insert(0, group.cache)
            joining = [*group.ids, *joining]
            lengths, shifts = [*group.lengths, *lengths], [*group.shifts, *shifts]
        self._group = _Group(joining, lengths, shifts, _merged(caches, max(lengths)))


def _merged(caches: Sequence[Any], longest: int) -> Any:
    """Caches below one another, padded on the left to the longest."""
    merged: Any = DynamicCache()
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        keys = torch.cat([_stretched(layer.keys, longest) for layer in layers])
        values = torch.cat([_stretched(layer.values, longest) for layer in layers])
        merged.layers.append(_layer(keys, values))
    return merged


def _kept(group: _Group, rows: Sequence[int]) -> _Group:
    lengths = [group.lengths[row] for row in rows]
    longest = max(lengths)
    cache: Any = DynamicCache()
    for layer in group.cache.layers:
        start = layer.keys.shape[2] - longest
        cache.layers.append(_layer(layer.keys[rows, :, start:], layer.values[rows, :, start:]))
    shifts = [group.shifts[row] for row in rows]
    return _Group([group.ids[row] for row in rows], lengths, shifts, cache)


def _stretched(part: torch.Tensor, longest: int) -> torch.Tensor:
    return torch.nn.functional.pad(part, (0, 0, longest - part.shape[2], 0))


def _layer(keys: torch.Tensor, values: torch.Tensor) -> Any:
    layer: Any = DynamicLayer()
    layer.keys, layer.values = keys, values
    layer.dtype, layer.device = keys.dtype, keys.device
    layer.is_initialized = True
    return layer


def load(folder: Path, dtype: torch.dtype, device: torch.device, kind: str = TEXT) -> Any:
    """The folder's language model, on its device.

    Args:
        kind: transformers' class that loads it.
    """
    return load_model(folder, kind, dtype=dtype).to(device).eval()


def cache_tokens(model: Any, memory_bytes: int) -> int:
    """How many tokens' keys and values fit into memory, by the model's configuration."""
    text = model.config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    a_token = 2 * text.num_hidden_layers * heads * size * model.dtype.itemsize
    return memory_bytes // a_token
