"""Runs a converted language model on OpenVINO, with a paged key-value cache.

`stoker.models.llm.engines.export` creates the IR in the usual stateful form of a decoder. This
module transforms it into the form that computes any chunks of any sequences at once
(PagedAttention). The transformation is OpenVINO's own, which OpenVINO GenAI also uses.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.models.adapters import graph
from stoker.models.llm.blocks import BlockCache
from stoker.models.llm.engines import pages
from stoker.models.llm.engines.ir import IR, TRACED, Facts
from stoker.wire.protocol import Precision, Sharing

if TYPE_CHECKING:
    from stoker.models.adapters.applying import Adapters, LoadedAdapter
    from stoker.models.llm.runner import Chunk

BLOCK_TOKENS = 32
"""Tokens per block of the CPU plugin's PagedAttention."""
_SAMPLED = "sampled_tokens"

Ints = npt.NDArray[np.int32]


class OpenVinoRunner:
    """Implements `Runner` on OpenVINO."""

    name = "openvino"
    sharing: Sharing | None = None
    can_retract = True
    step_tokens: int | None = None

    def __init__(
        self,
        folder: Path,
        *,
        threads: int,
        precision: Precision,
        cache_bytes: int,
        adapters: "Adapters | None" = None,
    ) -> None:
        """
        Args:
            precision: precision of products and of the cache.
            cache_bytes: maximum bytes of the key-value cache.
            adapters: adapters of the model. Its graph gets inputs for them.
        """
        self.adapters = adapters
        self._adapted: dict[int, LoadedAdapter] = {}
        """Maps a sequence to its adapter."""
        self._threads = threads
        facts = Facts.read(folder)
        self.max_length = facts.max_length
        self.vocabulary = facts.vocabulary
        self._request, compiled, self.layers = _compiled(
            folder, threads, precision, is_open=adapters is not None
        )
        self._stack = graph.Stack(self._request, self.layers) if self.layers else None
        caches = {
            port.get_any_name(): (port.get_element_type(), [*port.get_partial_shape()][1:])
            for port in compiled.inputs
            if "_cache." in port.get_any_name()
        }
        shapes = {
            name: (kind, [size.get_length() for size in sizes])
            for name, (kind, sizes) in caches.items()
        }
        a_block = sum(kind.size * int(np.prod(sizes)) for kind, sizes in shapes.values())
        # The cache must fit a sequence of maximum length.
        least = -(-self.max_length // BLOCK_TOKENS)
        blocks = max(least, cache_bytes // a_block)
        self._cache = BlockCache(blocks, BLOCK_TOKENS)
        self._memory: list[npt.NDArray[np.uint8]] = []
        """Memory of the keys and values. The request only has its addresses."""
        self._set_caches(shapes, blocks)

    def _set_caches(self, shapes: dict[str, tuple[Any, list[int]]], blocks: int) -> None:
        import openvino

        for name, (kind, sizes) in shapes.items():
            memory = pages.zeroed(blocks * int(np.prod(sizes)) * kind.size)
            self._memory.append(memory)
            shape = openvino.Shape([blocks, *sizes])
            self._request.set_tensor(name, openvino.Tensor(memory, shape, kind))

    def enter_thread(self) -> None:
        # OpenMP stores the number per thread that opens parallel regions.
        torch.set_num_threads(self._threads)

    def admit(
        self,
        identifier: int,
        tokens: Sequence[int],
        media: Any = None,
        *,
        fresh: bool = False,
        adapter: "LoadedAdapter | None" = None,
    ) -> int | None:
        if media is not None:
            raise ValueError("a converted model accepts no images")
        if adapter is None:
            return self._cache.admit(identifier, tokens, fresh=fresh)
        if self.adapters is None:
            raise ValueError("a model that was converted without adapters accepts none")
        if adapter.saved:
            # The adapter was loaded for torch before the model was switched.
            adapter = self.adapters.get(adapter.name)
        computed = self._cache.admit(identifier, tokens, fresh=fresh, kind=adapter.name)
        if computed is not None:
            self._adapted[identifier] = adapter
        return computed

    def reserve(self, identifier: int, length: int) -> bool:
        return self._cache.reserve(identifier, length)

    def outgrown(self, identifier: int, length: int) -> bool:
        """Returns False, because models that depend on a sequence's length are not converted."""
        return False

    def retract(self, identifier: int, length: int) -> None:
        # Later tokens lie in blocks that no other sequence shares, and are overwritten.
        self._cache.computed(identifier, length)

    def release(self, identifier: int) -> None:
        self._cache.release(identifier)
        self._adapted.pop(identifier, None)

    def rest(self) -> bool:
        return False

    @property
    def usage(self) -> float:
        return self._cache.usage

    def forward(self, chunks: "Sequence[Chunk]") -> torch.Tensor:
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks])
        tables = [
            self._cache.table(chunk.id)[: -(-(chunk.start + len(chunk.tokens)) // BLOCK_TOKENS)]
            for chunk in chunks
        ]
        positions = [np.arange(piece.start, piece.start + len(piece.tokens)) for piece in chunks]
        results = self._request.infer(
            {
                **self._slots(chunks),
                "input_ids": np.concatenate([np.asarray(piece.tokens) for piece in chunks]),
                "position_ids": np.concatenate(positions),
                "past_lens": _ints([piece.start for piece in chunks]),
                "subsequence_begins": _ints([0, *ends]),
                "block_indices": _ints([block for table in tables for block in table]),
                "block_indices_begins": _ints([0, *np.cumsum([len(piece) for piece in tables])]),
                "max_context_len": _ints(max(piece.start + len(piece.tokens) for piece in chunks)),
                _SAMPLED: np.asarray(
                    [
                        place
                        for piece, end in zip(chunks, ends, strict=True)
                        for place in range(end - piece.rows, end)
                    ],
                    dtype=np.int64,
                ),
            },
            share_inputs=True,
            share_outputs=True,
        )
        for piece in chunks:
            self._cache.computed(piece.id, piece.certain)
        library: Any = torch
        return library.from_numpy(results[0]).reshape(-1, self.vocabulary)

    def _slots(self, chunks: "Sequence[Chunk]") -> dict[str, Ints]:
        """Returns the adapter slot of each token, if the graph has an input for it."""
        if self._stack is None:
            return {}
        places = self._stack.slots([self._adapted.get(chunk.id) for chunk in chunks])
        return {graph.SLOTS: np.repeat(places, [len(chunk.tokens) for chunk in chunks])}


def _ints(values: Any) -> Ints:
    return np.asarray(values, dtype=np.int32)


def _compiled(
    folder: Path, threads: int, precision: Precision, *, is_open: bool
) -> tuple[Any, Any, Mapping[str, graph.Layer]]:
    """Returns a request, its compiled model, and the layers that accept adapters."""
    import openvino

    core: Any = openvino.Core()
    model = core.read_model(folder / IR)
    modules = graph.modules_of(model, TRACED) if is_open else {}
    sampled = _paged(model)
    layers = graph.open_layers(model, modules, gathered=sampled) if modules else {}
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
            # The default would store eight bits, which differs from torch's results.
            "KV_CACHE_PRECISION": precision,
            "PERFORMANCE_HINT": "LATENCY",
        },
    )
    return compiled.create_infer_request(), compiled, layers


def _paged(model: Any) -> Any:
    """Transforms the stateful form to PagedAttention, with logits only for requested tokens.

    Returns the input that selects these tokens.
    """
    import openvino
    from openvino._offline_transformations import paged_attention_transformation

    opset: Any = openvino.opset13
    paged_attention_transformation(model)
    node = model.output("logits").get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    chosen = opset.parameter([-1], openvino.Type.i64, name=_SAMPLED)
    chosen.output(0).get_tensor().set_names({_SAMPLED})
    # In this form, the hidden states have the shape (tokens, 1, size).
    gathered = opset.gather(node.input_value(0), chosen, opset.constant(0))
    node.input(0).replace_source_output(gathered.output(0))
    model.add_parameters([chosen])
    model.validate_nodes_and_infer_types()
    return chosen
