"""Attention over blocks with torch's scaled dot product, on any device and in any precision.

Keys and values of a sequence are gathered from its blocks. Sequences with few new tokens are
computed together, padded to the longest.
"""

from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from stoker.models.llm.engines.paged import explicit
from stoker.models.llm.engines.paged.attention import AttentionInputs
from stoker.models.llm.engines.paged.layout import ChunkSpan, Layout
from stoker.models.llm.engines.paged.memory import BlockMemory

FEW_TOKENS = 16
"""Maximum new tokens of sequences that are computed together."""


@dataclass(frozen=True)
class _GatheredGroup:
    """Sequences that are computed together."""

    rows: torch.Tensor
    """Places of the queries in the row, shape (sequences, queries). Padding repeats the last."""
    query_places: torch.Tensor
    """Positions of the queries, in the form of `rows`."""
    slots: torch.Tensor
    """Slots of keys and values, shape (sequences, width). Padding is the zero slot."""
    target: torch.Tensor | None = None
    """Indices of the queries that are not padding, in the flattened `rows`. None: all."""
    sees_all: bool = False
    """True if each query attends to the whole width, unless a window is narrower."""
    masks: dict[tuple[int | None, torch.dtype, int], torch.Tensor] = field(
        default_factory=dict[tuple[int | None, torch.dtype, int], torch.Tensor]
    )

    def covers(self, tokens: int) -> bool:
        """Returns True if the queries are a row of `tokens` tokens."""
        return self.target is None and self.rows.numel() == tokens

    def mask(self, window: int | None, dtype: torch.dtype, repeats: int) -> torch.Tensor | None:
        """Returns the additive mask of the attention: (sequences, 1, repeats · queries, width).

        Returns None if it hides nothing.
        """
        if self.sees_all and (window is None or window >= self.slots.shape[1]):
            return None
        key = window, dtype, repeats
        if key not in self.masks:
            places = torch.arange(self.slots.shape[1], device=self.slots.device)
            queries = self.query_places[:, :, None]
            hidden = places > queries
            if window is not None:
                hidden |= places <= queries - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            mask.masked_fill_(hidden, -torch.inf)
            self.masks[key] = mask.repeat(1, repeats, 1)[:, None]
        return self.masks[key]


class GatheredPass:
    """Implements `AttentionPass`."""

    def __init__(
        self,
        memory: BlockMemory,
        slots: torch.Tensor,
        groups: list[_GatheredGroup],
        fresh: list[ChunkSpan],
    ) -> None:
        """
        Args:
            slots: slot of each new token's keys and values.
            fresh: spans at the beginning of their sequences. They attend to themselves only.
        """
        self._memory = memory
        self._slots = slots
        self._groups = groups
        self._fresh = fresh

    def attend(self, layer: int, new: AttentionInputs) -> torch.Tensor:
        self._memory.write(layer, self._slots, new.key, new.value)
        query = new.query
        if not self._fresh and self._groups[0].covers(query.shape[0]):
            return self._together(layer, self._groups[0], new)
        output = query.new_empty(query.shape[0], query.shape[1], new.value.shape[2])
        for span in self._fresh:
            output[span.row : span.row + span.count] = _fresh(span, new)
        for group in self._groups:
            rows, places = self._together(layer, group, new), group.rows.flatten()
            if group.target is not None:
                rows, places = rows[group.target], places[group.target]
            output.index_copy_(0, places, rows)
        return output

    def _together(self, layer: int, group: _GatheredGroup, new: AttentionInputs) -> torch.Tensor:
        """Returns the output of a group's queries: (sequences · queries, heads, value size)."""
        keys, values = (part.transpose(1, 2) for part in self._memory.read(layer, group.slots))
        tokens, heads, _ = new.query.shape
        sequences, queries = group.rows.shape
        key_heads = keys.shape[1]
        repeats = heads // key_heads
        query = new.query if group.covers(tokens) else new.query[group.rows.flatten()]
        query = query.view(sequences, queries, key_heads, repeats, -1).permute(0, 2, 3, 1, 4)
        if new.is_plain:
            # Heads that share keys become additional queries, so that no key is copied.
            output = scaled_dot_product_attention(
                query.reshape(sequences, key_heads, repeats * queries, -1),
                keys,
                values,
                attn_mask=group.mask(new.window, query.dtype, repeats),
                scale=new.scale,
            ).view(sequences, key_heads, repeats, queries, -1)
        else:
            mask = group.mask(new.window, query.dtype, 1)
            output = explicit.attention(query, keys, values, mask, new)
        return output.permute(0, 3, 1, 2, 4).reshape(sequences * queries, heads, -1)


def _fresh(span: ChunkSpan, new: AttentionInputs) -> torch.Tensor:
    """Returns the output of a sequence's first tokens."""
    query, key, value = (
        part[span.row : span.row + span.count].transpose(0, 1)[None]
        for part in (new.query, new.key, new.value)
    )
    is_narrow = new.window is not None and span.count > new.window
    mask = None if new.is_plain and not is_narrow else _causal(span.count, new.window, query.device)
    if not new.is_plain:
        query = query.view(1, key.shape[1], -1, *query.shape[2:])
        output = explicit.attention(query, key, value, mask, new).flatten(1, 2)
        return output[0].transpose(0, 1)
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None and span.count > 1,
        scale=new.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[0].transpose(0, 1)


def _causal(count: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Returns a mask that is True for tokens that are attended to: (1, 1, count, count)."""
    places = torch.arange(count, device=device)
    distance = places[:, None] - places
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    return seen[None, None]


class GatheredAttention:
    """Implements `BlockAttention`."""

    def __init__(self, memory: BlockMemory) -> None:
        self._memory = memory

    def packed(self, layout: Layout) -> GatheredPass:
        fresh = [span for span in layout.spans if span.start == 0]
        few = [
            number
            for number, span in enumerate(layout.spans)
            if span.start > 0 and span.count <= FEW_TOKENS
        ]
        parts = [few] if few else []
        parts += [
            [number]
            for number, span in enumerate(layout.spans)
            if span.start > 0 and span.count > FEW_TOKENS
        ]
        groups = [self._group(layout, part) for part in parts]
        return GatheredPass(self._memory, layout.slots, groups, fresh)

    def stepped(
        self, slots: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
    ) -> GatheredPass:
        rows = torch.arange(len(lengths), device=lengths.device)[:, None]
        places = lengths.long()[:, None] - 1
        group = _GatheredGroup(rows, places, self._slots(table, lengths))
        return GatheredPass(self._memory, slots, [group], [])

    def _group(self, layout: Layout, numbers: list[int]) -> _GatheredGroup:
        spans = [layout.spans[number] for number in numbers]
        if len(spans) == 1:
            return self._single(layout, numbers[0], spans[0])
        device = layout.slots.device
        counts, starts, rows = (
            torch.tensor([getattr(span, name) for span in spans], device=device)
            for name in ("count", "start", "row")
        )
        most = max(span.count for span in spans)
        step = torch.arange(most, device=device)
        behind = torch.minimum(step, counts[:, None] - 1)
        blocks = -(-max(span.end for span in spans) // self._memory.block_tokens)
        everything = len(numbers) == len(layout.spans)
        table = layout.table if everything else layout.table[torch.tensor(numbers, device=device)]
        lengths = starts + counts
        is_even = all(span.count == most for span in spans)
        target = None if is_even else (step < counts[:, None]).flatten().nonzero()[:, 0]
        slots = self._slots(table[:, :blocks], lengths)[:, : max(span.end for span in spans)]
        return _GatheredGroup(
            rows[:, None] + behind,
            starts[:, None] + behind,
            slots,
            target,
        )

    def _single(self, layout: Layout, number: int, span: ChunkSpan) -> _GatheredGroup:
        """Returns the group of one sequence, without padding."""
        size = self._memory.block_tokens
        step = torch.arange(span.count, device=layout.slots.device)
        blocks = layout.table[number, : -(-span.end // size)].long()
        slots = (blocks[:, None] * size + torch.arange(size, device=blocks.device)).flatten()
        return _GatheredGroup(
            (step + span.row)[None],
            (step + span.start)[None],
            slots[None, : span.end],
            sees_all=span.count == 1,
        )

    def _slots(self, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Returns the slots of the sequences' keys: (sequences, width)."""
        size = self._memory.block_tokens
        step = torch.arange(size, device=table.device)
        slots = (table.long()[:, :, None] * size + step).flatten(1)
        places = torch.arange(slots.shape[1], device=table.device)
        # Slots behind a sequence's end may hold anything, even infinity.
        return torch.where(places < lengths[:, None], slots, self._memory.zero_slot)
