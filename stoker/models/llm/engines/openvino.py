"""Runs a converted language model on OpenVINO, with a paged key-value cache.

`stoker.models.llm.engines.export` makes the IR: the usual stateful form of a decoder. Here it
becomes the form that computes any chunks of any sequences at once (PagedAttention). OpenVINO's own
transformation, which OpenVINO GenAI uses, does that.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.models.adapters import graph
from stoker.models.llm.blocks import BlockCache
from stoker.models.llm.engines.ir import IR, TRACED, Facts
from stoker.wire.protocol import Precision, Sharing

if TYPE_CHECKING:
    from stoker.models.adapters.applying import Adapter, Adapters
    from stoker.models.llm.runner import Chunk

BLOCK_TOKENS = 32
"""Of the CPU plugin's PagedAttention."""
_SAMPLED = "sampled_tokens"

Ints = npt.NDArray[np.int32]


class OpenVinoRunner:
    """See `Runner`."""

    name = "openvino"
    sharing: Sharing | None = None
    can_retract = True

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
            precision: of products and of the cache.
            cache_bytes: what the key-value cache may take.
            adapters: those of the model; its graph gets a place for them.
        """
        self.adapters = adapters
        self._adapted: dict[int, Adapter] = {}
        """Sequence → what is added to the model for it."""
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
        # One sequence of full length has to fit.
        least = -(-self.max_length // BLOCK_TOKENS)
        blocks = max(least, cache_bytes // a_block)
        self._cache = BlockCache(blocks, BLOCK_TOKENS)
        self._set_caches(shapes, blocks)

    def _set_caches(self, shapes: dict[str, tuple[Any, list[int]]], blocks: int) -> None:
        import openvino

        for name, (kind, sizes) in shapes.items():
            # Pages are given by the kernel as they are written.
            self._request.set_tensor(name, openvino.Tensor(kind, openvino.Shape([blocks, *sizes])))

    def enter_thread(self) -> None:
        # OpenMP keeps the number for each thread that opens parallel regions.
        torch.set_num_threads(self._threads)

    def admit(
        self,
        identifier: int,
        tokens: Sequence[int],
        media: Any = None,
        *,
        anew: bool = False,
        adapter: "Adapter | None" = None,
    ) -> int | None:
        if media is not None:
            raise ValueError("a converted model takes no images")
        if adapter is None:
            return self._cache.admit(identifier, tokens, anew=anew)
        if self.adapters is None:
            raise ValueError("a model that was converted for itself takes no adapters")
        if adapter.saved:
            # It was loaded for torch, a moment ago.
            adapter = self.adapters.get(adapter.name)
        found = self._cache.admit(identifier, tokens, anew=anew, kind=adapter.name)
        if found is not None:
            self._adapted[identifier] = adapter
        return found

    def reserve(self, identifier: int, length: int) -> bool:
        return self._cache.reserve(identifier, length)

    def outgrown(self, identifier: int, length: int) -> bool:
        """What depends on a sequence's length is not converted."""
        return False

    def retract(self, identifier: int, length: int) -> None:
        # What is beyond lies in blocks that nobody shares, and is written over.
        self._cache.computed(identifier, length)

    def release(self, identifier: int) -> None:
        self._cache.release(identifier)
        self._adapted.pop(identifier, None)

    @property
    def usage(self) -> float:
        return self._cache.usage

    def forward(self, chunks: "Sequence[Chunk]") -> torch.Tensor:
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks])
        tables = [
            self._cache.table(chunk.id)[: -(-(chunk.start + len(chunk.tokens)) // BLOCK_TOKENS)]
            for chunk in chunks
        ]
        positions = [np.arange(one.start, one.start + len(one.tokens)) for one in chunks]
        found = self._request.infer(
            {
                **self._slots(chunks),
                "input_ids": np.concatenate([np.asarray(one.tokens) for one in chunks]),
                "position_ids": np.concatenate(positions),
                "past_lens": _ints([one.start for one in chunks]),
                "subsequence_begins": _ints([0, *ends]),
                "block_indices": _ints([block for table in tables for block in table]),
                "block_indices_begins": _ints([0, *np.cumsum([len(one) for one in tables])]),
                "max_context_len": _ints(max(one.start + len(one.tokens) for one in chunks)),
                _SAMPLED: np.asarray(
                    [
                        place
                        for one, end in zip(chunks, ends, strict=True)
                        for place in range(end - one.rows, end)
                    ],
                    dtype=np.int64,
                ),
            },
            share_inputs=True,
            share_outputs=True,
        )
        for one in chunks:
            self._cache.computed(one.id, one.certain)
        library: Any = torch
        return library.from_numpy(found[0]).reshape(-1, self.vocabulary)

    def _slots(self, chunks: "Sequence[Chunk]") -> dict[str, Ints]:
        """Whose each token is, where the graph asks."""
        if self._stack is None:
            return {}
        places = self._stack.slots([self._adapted.get(one.id) for one in chunks])
        return {graph.SLOTS: np.repeat(places, [len(one.tokens) for one in chunks])}


def _ints(values: Any) -> Ints:
    return np.asarray(values, dtype=np.int32)


def _compiled(
    folder: Path, threads: int, precision: Precision, *, is_open: bool
) -> tuple[Any, Any, Mapping[str, graph.Layer]]:
    """A request, what it is of, and the layers that adapters may be added to."""
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
            # By itself it would keep eight bits, which is not what torch computes.
            "KV_CACHE_PRECISION": precision,
            "PERFORMANCE_HINT": "LATENCY",
        },
    )
    return compiled.create_infer_request(), compiled, layers


def _paged(model: Any) -> Any:
    """From the stateful form to PagedAttention, with logits only where they are asked for.

    Returns the input that asks.
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
    # The hidden states are (tokens, 1, size) in this form.
    gathered = opset.gather(node.input_value(0), chosen, opset.constant(0))
    node.input(0).replace_source_output(gathered.output(0))
    model.add_parameters([chosen])
    model.validate_nodes_and_infer_types()
    return chosen
