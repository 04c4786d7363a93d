"""Runs a decoder language model with transformers over a paged cache of keys and values.

One forward pass computes the tokens of all sequences as one row, prompts and next tokens alike.
Models whose attention cannot be computed like that run on `TorchRunner`.
"""

import inspect
import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from stoker.models.adapters.applying import Adapters, LoadedAdapter
from stoker.models.engines.recording_guard import RecordingGuard
from stoker.models.engines.transfers import stream_of
from stoker.models.llm.blocks import BlockCache
from stoker.models.llm.engines.paged import attention, norms, sizes
from stoker.models.llm.engines.paged.captured import CapturedSteps, Capturing, StepBuffer, StepRow
from stoker.models.llm.engines.paged.gathered import GatheredAttention
from stoker.models.llm.engines.paged.images import PagedImages
from stoker.models.llm.engines.paged.layout import BlockAttention, arranged
from stoker.models.llm.engines.paged.memory import BlockMemory
from stoker.models.llm.engines.paged.varlen import MixedAttention, VarlenAttention
from stoker.models.llm.engines.positions import PositionAxes, Positions, longest
from stoker.models.llm.interface import Features
from stoker.wire.passes import RecordedPasses
from stoker.wire.protocol import Sharing

if TYPE_CHECKING:
    from stoker.models.llm.runner import Chunk

log = logging.getLogger(__name__)


class PagedRunner:
    """Implements `Runner` with transformers."""

    name = "torch"
    sharing: Sharing | None = Sharing.PAGED
    can_retract = True

    def __init__(
        self,
        model: Any,
        *,
        threads: int,
        cache_bytes: int,
        most_cache_bytes: int | None = None,
        adapters: Adapters | None = None,
        positions: Positions | None = None,
        capturing: Capturing | None = None,
    ) -> None:
        """
        Args:
            model: transformers model with a language modelling head.
            cache_bytes: maximum bytes of the cache. One sequence of maximum length always has room.
            most_cache_bytes: see `sizes.planned`.
            positions: positions of the model, if it was run before.
            capturing: captures steps of one token per sequence. None: no step is captured.

        Raises:
            UnfitAttentionError: the model's attention cannot be computed over blocks.
        """
        self.model = model
        self.adapters = adapters
        self._adapted: dict[int, LoadedAdapter] = {}
        """Maps a sequence to its adapter."""
        self._threads = threads
        text = model.config.get_text_config(decoder=True)
        self.vocabulary = int(text.vocab_size)
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        if "position_ids" not in self._accepted:
            raise attention.UnfitAttentionError("the model accepts no positions")
        self._positions = positions or Positions(model)
        self._kinds: dict[int, int] = {}
        """Maps a sequence to its `Positions.kind`."""
        self._whole: dict[int, int] = {}
        """Maps a sequence to its number of tokens when it was admitted."""
        self._fused: list[Any] = []
        """Norms that were replaced."""
        self._axes = PositionAxes(model)
        self._previous = attention.implement(model, attention.NAME)
        try:
            self._layers = attention.observe(model, self._axes)
            plan = sizes.planned(
                self._layers, longest(text), cache_bytes, model.device, most_cache_bytes
            )
            self.max_length = plan.max_length
            self._memory = BlockMemory(self._layers, plan.blocks, plan.block_tokens, model.device)
        except BaseException:
            self.restore()
            raise
        self._cache = BlockCache(plan.blocks, plan.block_tokens)
        self._images = PagedImages(model, self._axes, self._memory, self._previous)
        self.step_tokens = sizes.step_tokens(model)
        self._attention = self._kernel(plan.in_kernel)
        self._captured = self._captures(capturing) if capturing else None
        if model.device.type == "cuda" and model.dtype != torch.float32:
            self._fused += norms.fuse(model)

    def restore(self) -> None:
        """Gives the model its former attention back. The runner is not usable afterwards."""
        attention.implement(self.model, self._previous)
        norms.unfuse(self._fused)

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
        kind = self._positions.kind(len(tokens))
        # The same tokens have other keys and values with an adapter or with other positions.
        shared = f"{kind} {adapter.name if adapter else ''}"
        is_alone = fresh or media is not None
        computed = self._cache.admit(identifier, tokens, fresh=is_alone, kind=shared)
        if computed is not None:
            self._kinds[identifier], self._whole[identifier] = kind, len(tokens)
            if media is not None:
                self._images.add(identifier, media)
            if adapter:
                self._adapted[identifier] = adapter
        return computed

    def reserve(self, identifier: int, length: int) -> bool:
        return self._cache.reserve(identifier, length)

    def outgrown(self, identifier: int, length: int) -> bool:
        return self._kinds[identifier] != self._positions.kind(length)

    def retract(self, identifier: int, length: int) -> None:
        # Later tokens lie in blocks that no other sequence shares, and are overwritten.
        self._record(identifier, length)

    def release(self, identifier: int) -> None:
        self._cache.release(identifier)
        self._images.remove(identifier)
        for known in (self._kinds, self._whole, self._adapted):
            known.pop(identifier, None)

    @property
    def usage(self) -> float:
        return self._cache.usage

    @torch.inference_mode()
    def forward(self, chunks: "Sequence[Chunk]") -> torch.Tensor:
        # An error in a pass with images counts as the fault of the images.
        if self._captured and not self._images.waits(chunks[0].id):
            self._captured.capture_between()
        rows = self._repeated(chunks)
        if rows is None:
            kinds = sorted({self._kinds[chunk.id] for chunk in chunks})
            parts = [[chunk for chunk in chunks if self._kinds[chunk.id] == kind] for kind in kinds]
            rows = self._packed(parts[0]) if len(parts) == 1 else self._apart(chunks, parts)
        for chunk in chunks:
            self._record(chunk.id, chunk.certain)
        return rows

    def _record(self, identifier: int, length: int) -> None:
        """Lets other sequences share the first `length` tokens."""
        # The tokens of a prompt with images do not identify it.
        if identifier not in self._images:
            self._cache.computed(identifier, length)

    def is_usable(self) -> bool:
        """Waits for the device. Returns False if the device can no longer compute."""
        return stream_of(self.model.device).is_usable()

    def guard(self, guard: RecordingGuard) -> None:
        """Notes each capture while it runs, from now on. Skips captures that ended earlier
        replicas.
        """
        if self._captured:
            self._captured.guard(guard)

    @property
    def recorded(self) -> RecordedPasses:
        return self._captured.state if self._captured else RecordedPasses()

    def rest(self) -> bool:
        """Captures a step. Returns True if more remain."""
        return self._captured.capture_idle() if self._captured else False

    def _apart(self, chunks: "Sequence[Chunk]", parts: "Sequence[Sequence[Chunk]]") -> torch.Tensor:
        """Computes each part in its own pass. Returns the rows in the order of the chunks."""
        rows: dict[int, torch.Tensor] = {}
        for part in parts:
            split = torch.split(self._packed(part), [chunk.rows for chunk in part])
            rows |= {chunk.id: piece for chunk, piece in zip(part, split, strict=True)}
        return torch.cat([rows[chunk.id] for chunk in chunks])

    def _packed(self, chunks: "Sequence[Chunk]") -> torch.Tensor:
        """Computes chunks of one kind of positions in one pass. A chunk with images is alone."""
        layout = arranged(
            chunks,
            [self._cache.table(chunk.id) for chunk in chunks],
            [self._images.shift(chunk.id) for chunk in chunks],
            block_tokens=self._memory.block_tokens,
            spare_block=self._memory.spare_block,
            device=self.model.device,
        )
        length = max(self._whole[chunk.id] for chunk in chunks)
        with self._added(chunks), self._positions.of(length):
            if self._images.waits(chunks[0].id):
                return self._images.compute(chunks[0].id, layout)
            positions = self._axes.of_text(layout.places, layout.positions)
            attending = self._attention.packed(layout)
            return self._logits(layout.ids, positions, layout.wanted, attending)

    def _logits(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor | None,
        attention_pass: attention.AttentionPass,
    ) -> torch.Tensor:
        """Returns the logits after the tokens at `wanted`, or after all: float32 (rows,
        vocabulary).
        """
        options: dict[str, Any] = {}
        if wanted is not None and "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = wanted
        with attention.computing(attention_pass):
            output = self.model(input_ids=ids, position_ids=positions, use_cache=False, **options)
        rows = output.logits[0]
        return (rows if options or wanted is None else rows[wanted]).float()

    def _added(self, chunks: "Sequence[Chunk]") -> AbstractContextManager[None]:
        """Returns a context in which passes compute each token with its sequence's adapter."""
        if self.adapters is None:
            return nullcontext()
        adapted = [self._adapted.get(chunk.id) for chunk in chunks]
        if self._images.waits(chunks[0].id):
            return self.adapters.rows(self.model, adapted)
        pairs = list(zip(adapted, chunks, strict=True))
        tokens = [adapter for adapter, chunk in pairs for _ in chunk.tokens]
        wanted = [adapter for adapter, chunk in pairs for _ in range(chunk.rows)]
        return self.adapters.rows(self.model, tokens, wanted)

    def _kernel(self, fitting: Collection[int]) -> BlockAttention:
        if len(fitting) == len(self._layers):
            return VarlenAttention(self._memory)
        if fitting:
            return MixedAttention(self._memory, fitting)
        return GatheredAttention(self._memory)

    # --- captured steps ---

    def _captures(self, capturing: Capturing) -> CapturedSteps:
        return CapturedSteps(
            self._step,
            capturing,
            vocabulary=self.vocabulary,
            block_tokens=self._memory.block_tokens,
            spare_block=self._memory.spare_block,
            longest=self.max_length,
            device=self.model.device,
        )

    def _repeated(self, chunks: "Sequence[Chunk]") -> torch.Tensor | None:
        """Returns the logits from a captured step. None if the chunks need another pass."""
        if self._captured is None or any(
            len(chunk.tokens) != 1
            or not chunk.rows
            or chunk.id in self._adapted
            or self._kinds[chunk.id]
            for chunk in chunks
        ):
            return None
        size = self._memory.block_tokens
        rows: list[StepRow] = []
        for chunk in chunks:
            place, behind = divmod(chunk.start, size)
            blocks = self._cache.table(chunk.id)[: place + 1]
            slot = blocks[place] * size + behind
            shift = self._images.shift(chunk.id)
            rows.append(StepRow(chunk.tokens[0], chunk.start, slot, blocks, shift))
        return self._captured.logits(rows)

    def _step(self, buffer: StepBuffer) -> torch.Tensor:
        attention_pass = self._attention.stepped(buffer.slots.long(), buffer.table, buffer.lengths)
        places = buffer.lengths.long()[None] - 1
        positions = self._axes.of_text(places, buffer.positions.long()[None])
        return self._logits(buffer.ids.long()[None], positions, None, attention_pass)
