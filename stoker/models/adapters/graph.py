"""Adapters of a model that OpenVINO runs: each token of a batch gets its own.

Each linear layer gets two low-rank inputs, A (in, R) and B (R, out). They hold the matrices of all
adapters of a batch side by side; R is the sum of their ranks. After A, a mask keeps only the values
of each token's own adapter, so that one pair of products serves all adapters. Tokens of the base
get zero added. Without adapters R is 0, and a pass costs as much as without this graph
(docs/architecture/adapters.md has the measurements). Gathering each token's matrices would copy
more than it computes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.models.adapters.applying import Adapter

SLOTS = "adapter_slots"
"""The input that says whose each row is: its adapter's place, or `BASE`."""
BASE = -1
KEPT, KEPT_BYTES = 16, 256 << 20
"""Adapters that stay in the inputs while others join, and what they may take with these: laying
them out anew copies all of them."""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Layer:
    """A linear layer of a graph that was opened."""

    inputs: int
    outputs: int


def modules_of(model: Any, prefix: str) -> dict[str, str]:
    """Node → module, of a graph that was traced: its nodes are called by the modules they are of.

    Args:
        prefix: what all names of modules begin with there.
    """
    found: dict[str, str] = {}
    for node in _products(model):
        name = node.get_friendly_name()
        module, slash, _ = name.removeprefix(prefix).partition("/")
        if slash and name.startswith(prefix):
            found[name] = module
    return found


def modules_by(model: Any, layers: Mapping[str, str]) -> dict[str, str]:
    """Node → module, of a graph whose nodes' names begin otherwise.

    Args:
        layers: what they begin with → module.
    """
    names = [node.get_friendly_name() for node in _products(model)]
    begins = {name: name.partition("/")[0] for name in names}
    return {name: layers[begin] for name, begin in begins.items() if begin in layers}


def open_layers(
    model: Any, modules: Mapping[str, str], *, gathered: Any = None, by_row: bool = False
) -> dict[str, Layer]:
    """Give linear layers their low-rank inputs. Returns them by the names of their modules.

    Args:
        modules: node → module.
        gathered: rows that the last layer computes only, an output of the graph; None: all of them.
        by_row: whether rows hold several tokens, (rows, tokens, features), and not one each.
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
        outputs, inputs = (one.get_length() for one in node.get_input_partial_shape(1))
        if not node.get_attributes()["transpose_b"]:
            outputs, inputs = inputs, outputs
        # A module may be called more than once.
        layers[name] = Layer(inputs, outputs)
        place = places.get(name) or places.setdefault(name, _place(opset, name, layers[name]))
        own = opset.gather(slots, gathered, opset.constant(0)) if node is last else slots
        _open(opset, node, own, place, by_row=by_row)
    model.add_parameters([slots, *(one for place in places.values() for one in place)])
    model.validate_nodes_and_infer_types()
    return layers


def _place(opset: Any, name: str, layer: Layer) -> list[Any]:
    """A layer's inputs: A, B, whose each of the R is, and what is added between the two."""
    import openvino

    kinds = openvino.Type
    return [
        _parameter(opset, _down(name), [layer.inputs, -1], kinds.f32),
        _parameter(opset, _up(name), [-1, layer.outputs], kinds.f32),
        _parameter(opset, _owners(name), [1, -1], kinds.i32),
        _parameter(opset, _constants(name), [1, -1], kinds.f32),
    ]


def _open(opset: Any, node: Any, slots: Any, place: Sequence[Any], *, by_row: bool) -> None:
    """Add what these inputs come to to what a layer gives."""
    down, up, owners, constants = place
    targets = [*node.output(0).get_target_inputs()]
    given = node.input_value(0)
    rank = given.get_partial_shape().rank.get_length()
    if by_row:
        own = _rows_like(opset, slots, given, rank)
    else:
        # With a dimension of one beside each token, products would be computed one by one.
        size = down.get_partial_shape()[0].get_length()
        given = opset.reshape(given, opset.constant(np.array([-1, size])), False)
        own = opset.unsqueeze(slots, opset.constant(1))
    found = opset.add(opset.matmul(given, down, False, False), constants)
    # Not multiplied by zero: of another adapter's infinity that would be no number.
    found = opset.select(opset.equal(own, owners), found, opset.constant(np.float32(0)))
    found = opset.matmul(found, up, False, False)
    if not by_row and rank == 3:
        found = opset.unsqueeze(found, opset.constant(1))
    added = opset.add(node, found)
    for target in targets:
        target.replace_source_output(added.output(0))


def _rows_like(opset: Any, slots: Any, given: Any, rank: int) -> Any:
    """(rows,) → what compares with a layer's input, of whatever rank, feature by feature."""
    if rank != 2:
        shape = np.array([-1, *[1] * (rank - 1)])
        return opset.reshape(slots, opset.constant(shape), False)
    # Some models put the tokens of all rows below one another.
    zero = opset.constant(np.array([0]))
    rows = opset.shape_of(slots)
    count = opset.gather(opset.shape_of(given), zero, opset.constant(0))
    each = opset.concat([rows, opset.divide(count, rows)], 0)
    spread = opset.broadcast(opset.unsqueeze(slots, opset.constant(1)), each)
    return opset.reshape(spread, opset.constant(np.array([-1, 1])), False)


def _products(model: Any) -> list[Any]:
    """Those with weights, in no order."""
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
    """Which adapters the inputs of a compiled model hold, and where. One thread uses it."""

    def __init__(self, request: Any, layers: Mapping[str, Layer]) -> None:
        self._request = request
        self._layers = layers
        self._places: dict[Adapter, int] = {}
        """The one that was used last comes last."""
        for name, layer in layers.items():
            self._lay(name, layer, [])

    def slots(self, given: Sequence[Adapter | None]) -> Ints:
        """Whose each row is, int32 (rows,), for `SLOTS`; their matrices are laid out."""
        wanted = dict.fromkeys(one for one in given if one)
        if not wanted.keys() <= self._places.keys():
            self._rebuild([*wanted])
        for one in wanted:
            self._places[one] = self._places.pop(one)
        return np.array([self._places[one] if one else BASE for one in given], dtype=np.int32)

    def _rebuild(self, wanted: Sequence[Adapter]) -> None:
        held = [*wanted]
        taken = sum(one.nbytes for one in wanted)
        for one in reversed([one for one in self._places if one not in wanted]):
            taken += one.nbytes
            if len(held) >= KEPT or taken > KEPT_BYTES:
                break
            held.insert(0, one)
        before = {name for one in self._places for name in one.modules}
        self._places = {one: place for place, one in enumerate(held)}
        for name in before.union(*(one.modules for one in held)):
            self._lay(name, self._layers[name], [one for one in held if name in one.modules])

    def _lay(self, name: str, layer: Layer, held: Sequence[Adapter]) -> None:
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
