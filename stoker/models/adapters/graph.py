"""Adapters of a model that OpenVINO runs: each token of a batch has its own.

Each linear layer gets two low-rank inputs, A (in, R) and B (R, out). They hold the matrices of all
adapters of a batch side by side; R is the sum of their ranks. After A, a mask keeps only the values
of each token's own adapter, so that one pair of products serves all adapters. Tokens of the base
get zero added.

Without adapters R is 0, and a pass costs as much as without this graph
(docs/architecture/adapters.md has the measurements). Gathering each token's matrices would copy
more than it computes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.models.adapters.applying import LoadedAdapter

SLOTS = "adapter_slots"
"""Name of the input with each row's adapter: its index, or `BASE`."""
BASE = -1
KEPT, KEPT_BYTES = 16, 256 << 20
"""Maximum number and bytes of adapters that stay in the inputs when others join. Each new layout
copies all of them.
"""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Layer:
    """Linear layer of a graph that accepts adapters."""

    inputs: int
    outputs: int


def modules_of(model: Any, prefix: str) -> dict[str, str]:
    """Maps nodes to modules for a traced graph. Its nodes are named after their modules.

    Args:
        prefix: common beginning of all module names in the graph.
    """
    modules: dict[str, str] = {}
    for node in _products(model):
        name = node.get_friendly_name()
        module, slash, _ = name.removeprefix(prefix).partition("/")
        if slash and name.startswith(prefix):
            modules[name] = module
    return modules


def modules_by(model: Any, layers: Mapping[str, str]) -> dict[str, str]:
    """Maps nodes to modules for a graph with other beginnings of node names.

    Args:
        layers: maps the beginning of a node's name to the module.
    """
    names = [node.get_friendly_name() for node in _products(model)]
    begins = {name: name.partition("/")[0] for name in names}
    return {name: layers[begin] for name, begin in begins.items() if begin in layers}


def open_layers(
    model: Any, modules: Mapping[str, str], *, gathered: Any = None, by_row: bool = False
) -> dict[str, Layer]:
    """Adds low-rank inputs to linear layers. Returns the layers by the names of their modules.

    Args:
        modules: maps nodes to modules.
        gathered: an output of the graph with the only rows that the last layer computes. None: all
            rows.
        by_row: True if rows hold several tokens, (rows, tokens, features), instead of one each.
    """
    import openvino

    opset: Any = openvino.opset13
    slots = _parameter(opset, SLOTS, [-1], openvino.Type.i32)
    layers: dict[str, Layer] = {}
    places: dict[str, list[Any]] = {}
    last = _last_product(model) if gathered is not None else None
    for node in _products(model):
        name = modules.get(node.get_friendly_name())
        if name is None:
            continue
        outputs, inputs = (element.get_length() for element in node.get_input_partial_shape(1))
        if not node.get_attributes()["transpose_b"]:
            outputs, inputs = inputs, outputs
        # A module may be called several times.
        layers[name] = Layer(inputs, outputs)
        place = places.get(name) or places.setdefault(name, _place(opset, name, layers[name]))
        layer_slots = opset.gather(slots, gathered, opset.constant(0)) if node is last else slots
        _open(opset, node, layer_slots, place, by_row=by_row)
    model.add_parameters([slots, *(element for place in places.values() for element in place)])
    model.validate_nodes_and_infer_types()
    return layers


def _place(opset: Any, name: str, layer: Layer) -> list[Any]:
    """Returns a layer's inputs: A, B, the owner of each of the R, and the constants between A and
    B.
    """
    import openvino

    kinds = openvino.Type
    return [
        _parameter(opset, _down(name), [layer.inputs, -1], kinds.f32),
        _parameter(opset, _up(name), [-1, layer.outputs], kinds.f32),
        _parameter(opset, _owners(name), [1, -1], kinds.i32),
        _parameter(opset, _constants(name), [1, -1], kinds.f32),
    ]


def _open(opset: Any, node: Any, slots: Any, place: Sequence[Any], *, by_row: bool) -> None:
    """Adds the adapters' result from these inputs to a layer's output."""
    down, up, owners, constants = place
    targets = [*node.output(0).get_target_inputs()]
    layer_input = node.input_value(0)
    rank = layer_input.get_partial_shape().rank.get_length()
    if by_row:
        token_slots = _rows_like(opset, slots, layer_input, rank)
    else:
        # With a dimension of one per token, products would be computed one by one.
        size = down.get_partial_shape()[0].get_length()
        layer_input = opset.reshape(layer_input, opset.constant(np.array([-1, size])), False)
        token_slots = opset.unsqueeze(slots, opset.constant(1))
    result = opset.add(opset.matmul(layer_input, down, False, False), constants)
    # A selection instead of a product with zero: another adapter's infinity times zero would be
    # NaN.
    result = opset.select(opset.equal(token_slots, owners), result, opset.constant(np.float32(0)))
    result = opset.matmul(result, up, False, False)
    if not by_row and rank == 3:
        result = opset.unsqueeze(result, opset.constant(1))
    added = opset.add(node, result)
    for target in targets:
        target.replace_source_output(added.output(0))


def _rows_like(opset: Any, slots: Any, given: Any, rank: int) -> Any:
    """Reshapes (rows,) for a feature-by-feature comparison with a layer's input of any rank."""
    if rank != 2:
        shape = np.array([-1, *[1] * (rank - 1)])
        return opset.reshape(slots, opset.constant(shape), False)
    # Some models concatenate the tokens of all rows.
    zero = opset.constant(np.array([0]))
    rows = opset.shape_of(slots)
    count = opset.gather(opset.shape_of(given), zero, opset.constant(0))
    each = opset.concat([rows, opset.divide(count, rows)], 0)
    spread = opset.broadcast(opset.unsqueeze(slots, opset.constant(1)), each)
    return opset.reshape(spread, opset.constant(np.array([-1, 1])), False)


def _products(model: Any) -> list[Any]:
    """Returns the matrix products with weights, in no particular order."""
    return [
        node
        for node in model.get_ops()
        if node.get_type_name() == "MatMul"
        and node.get_input_partial_shape(1).is_static
        and len(node.get_input_shape(1)) == 2
        and not node.get_attributes()["transpose_a"]
    ]


def _last_product(model: Any) -> Any:
    node = model.output("logits").get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    return node


def _parameter(opset: Any, name: str, shape: Sequence[int], kind: Any) -> Any:
    made = opset.parameter([*shape], kind, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def _down(name: str) -> str:
    return f"adapter_down.{name}"


def _up(name: str) -> str:
    return f"adapter_up.{name}"


def _owners(name: str) -> str:
    return f"adapter_owners.{name}"


def _constants(name: str) -> str:
    return f"adapter_constants.{name}"


class Stack:
    """Adapters in the inputs of a compiled model, with their positions. One thread uses it."""

    def __init__(self, request: Any, layers: Mapping[str, Layer]) -> None:
        self._request = request
        self._layers = layers
        self._places: dict[LoadedAdapter, int] = {}
        """Positions of the adapters, most recently used last."""
        for name, layer in layers.items():
            self._lay(name, layer, [])

    def slots(self, given: Sequence[LoadedAdapter | None]) -> Ints:
        """Loads the rows' adapters into the inputs. Returns the index of each row's adapter for
        `SLOTS`, int32 (rows,).
        """
        adapters = dict.fromkeys(adapter for adapter in given if adapter)
        if not adapters.keys() <= self._places.keys():
            self._rebuild([*adapters])
        for adapter in adapters:
            self._places[adapter] = self._places.pop(adapter)
        return np.array(
            [self._places[adapter] if adapter else BASE for adapter in given], dtype=np.int32
        )

    def _rebuild(self, wanted: Sequence[LoadedAdapter]) -> None:
        adapters = [*wanted]
        total_bytes = sum(adapter.nbytes for adapter in wanted)
        for adapter in reversed([adapter for adapter in self._places if adapter not in wanted]):
            total_bytes += adapter.nbytes
            if len(adapters) >= KEPT or total_bytes > KEPT_BYTES:
                break
            adapters.insert(0, adapter)
        before = {name for adapter in self._places for name in adapter.modules}
        self._places = {adapter: place for place, adapter in enumerate(adapters)}
        for name in before.union(*(adapter.modules for adapter in adapters)):
            self._lay(
                name,
                self._layers[name],
                [adapter for adapter in adapters if name in adapter.modules],
            )

    def _lay(self, name: str, layer: Layer, held: Sequence[LoadedAdapter]) -> None:
        pairs = [one.modules[name] for one in held]
        ranks = [down.shape[1] for down, _ in pairs]
        owners = np.repeat([self._places[one] for one in held], ranks)
        self._set(_owners(name), owners.astype(np.int32)[None])
        constants = [
            _array(one.constants[name]) if name in one.constants else np.zeros(rank, np.float32)
            for one, rank in zip(held, ranks, strict=True)
        ]
        empty = np.zeros(0, np.float32)
        self._set(_constants(name), np.concatenate([empty, *constants])[None])
        downs = [np.zeros((layer.inputs, 0), np.float32), *(_array(one) for one, _ in pairs)]
        ups = [np.zeros((0, layer.outputs), np.float32), *(_array(one) for _, one in pairs)]
        self._set(_down(name), np.concatenate(downs, axis=1))
        self._set(_up(name), np.concatenate(ups))

    def _set(self, name: str, value: npt.NDArray[Any]) -> None:
        import openvino

        self._request.set_tensor(name, openvino.Tensor(np.ascontiguousarray(value)))


def _array(value: torch.Tensor) -> Floats:
    return value.float().cpu().numpy()
