"""Adds adapters to a torch model while it runs: each row of a batch has its own.

The base's weights stay as they are. A hook watches each linear layer that an adapter has matrices
for. It adds B A x to the rows of that adapter. Rows of the base and of any number of adapters share
the rest of the pass.
"""

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch.nn import Linear

from stoker.models.adapters import lora
from stoker.models.adapters.lora import Lora
from stoker.models.adapters.stored import StoredWeights

_CONVOLUTION = "Conv1D"
"""transformers' linear layer with transposed weights, as in GPT-2."""
_DEEPEST = 3
"""Maximum number of leading parts of a module's name that may belong to a model around the base."""


class AdapterUnfitError(Exception):
    """The adapter does not fit this model. The message is for its owner."""


def adapters_of(model: Any, folder: str, most_bytes: int) -> "Adapters | None":
    """Returns the adapters of a replica's model, or None if requests may not name any (no
    folder).
    """
    return Adapters(model, Path(folder), most_bytes) if folder else None


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """Loaded adapter. It stays complete while any reference to it exists."""

    name: str
    modules: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    """Matrices by the model's own module names: A transposed, (in, rank), and scale · B transposed,
    (rank, out).
    """
    saved: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]]
    """Linear layers that replace the model's: weight and bias."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """Constants of shape (rank,), added between the two matrices of a module that represents a
    bias.
    """

    @property
    def nbytes(self) -> int:
        pairs = (*self.modules.values(), *self.saved.values())
        return sum(tensor.nbytes for pair in pairs for tensor in pair if tensor is not None)


class Adapters:
    """Adapters of one model, loaded on first use and evicted for others.

    Any thread loads them; the thread that runs the model uses them.
    """

    def __init__(self, model: Any, folder: Path, most_bytes: int) -> None:
        """
        Args:
            folder: contains a folder for each adapter.
            most_bytes: maximum bytes of loaded adapters. The last one is kept in any case.
        """
        self._model = model
        self._folder = folder
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, LoadedAdapter] = OrderedDict()
        """Loaded adapters, least recently used first."""
        self._lock = threading.Lock()
        self._stored: StoredWeights | None = None
        self._places: AbstractSet[str] | None = None
        self._hooked: WeakSet[Any] = WeakSet()
        self._rows: _Rows | None = None
        self._kept_rows: _Rows | None = None
        """See `rows`."""

    def rebase(self, model: Any, stored: StoredWeights, places: AbstractSet[str]) -> None:
        """Makes adapters that are loaded from now on fit a graph of the same model.

        Args:
            model: the graph's original model. Only this method drops its weights, since another
                thread may be comparing an adapter with them.
            stored: the model's stored weights. Layers that replace the model's are subtracted from
                them.
            places: the modules that the graph can add adapters to.
        """
        with self._lock:
            self._model, self._stored, self._places = model.to("meta"), stored, places
            self._kept.clear()

    def check_all(self, model: Any, stored: StoredWeights, places: AbstractSet[str]) -> None:
        """Raises `AdapterUnfitError` if an existing adapter could not be loaded after `rebase`."""
        trial = Adapters(model, self._folder, 0)
        trial._stored, trial._places = stored, places
        for folder in sorted(self._folder.iterdir()):
            if not folder.name.startswith(".") and (folder / lora.WEIGHTS).exists():
                trial.get(folder.name)

    def get(self, name: str) -> LoadedAdapter:
        """Returns a loaded adapter. Raises `AdapterUnfitError` if it does not fit the model, and
        `OSError`.
        """
        with self._lock:
            adapter = self._kept.get(name)
            if adapter is None:
                adapter = self._kept[name] = self._loaded(name)
            self._kept.move_to_end(name)
            while len(self._kept) > 1 and self._taken > self._most_bytes:
                self._kept.popitem(last=False)
        return adapter

    @property
    def _taken(self) -> int:
        return sum(adapter.nbytes for adapter in self._kept.values())

    @contextlib.contextmanager
    def rows(
        self,
        model: Any,
        given: Sequence[LoadedAdapter | None],
        kept: Sequence[LoadedAdapter | None] | None = None,
    ) -> Generator[None]:
        """Applies these adapters to the rows of a torch model's passes within the block.

        Args:
            kept: adapters of the rows with logits, if a pass computes logits for some rows only.
        """
        if not any(given):
            yield
            return
        self._rows = _Rows(given)
        self._kept_rows = None if kept is None or len(kept) == len(given) else _Rows(kept)
        for name in {
            name for adapter in given if adapter for name in (*adapter.modules, *adapter.saved)
        }:
            self._hook(name, model.get_submodule(name))
        try:
            yield
        finally:
            self._rows = self._kept_rows = None

    @contextlib.contextmanager
    def packed(self, owners: torch.Tensor) -> Generator[None]:
        """Applies the adapters of `rows` to layers that compute the tokens of all rows in one row.

        Args:
            owners: the row that each token of the packed row belongs to, (tokens,).
        """
        if self._rows is None:
            yield
            return
        self._rows.owners = owners
        try:
            yield
        finally:
            self._rows.owners = None

    def _hook(self, name: str, module: Any) -> None:
        if module in self._hooked:
            return
        self._hooked.add(module)

        def added(_module: Any, given: tuple[Any, ...], output: torch.Tensor) -> None:
            rows, kept = self._rows, self._kept_rows
            if rows and kept and not rows.fits(given[0]):
                rows = kept
            if rows:
                rows.add(name, given[0], output)

        module.register_forward_hook(added)

    def _loaded(self, name: str) -> LoadedAdapter:
        from safetensors import safe_open

        folder = self._folder / name
        library: Any = safe_open
        with library(str(folder / lora.WEIGHTS), framework="pt") as file:
            names: list[str] = list(file.keys())
            shapes = {one: tuple(file.get_slice(one).get_shape()) for one in names}
            config: Any = json.loads((folder / lora.CONFIG).read_text())
            settings = lora.read(config, shapes)
            if settings.alone:
                raise AdapterUnfitError(settings.alone)
            self._check(settings)
            own_names = _own_names(self._model, settings)
            modules = {
                own_names[module]: self._pair(own_names[module], one, file)
                for module, one in settings.modules.items()
            }
            saved = self._saved(settings, own_names, file)
            self._check_copies(settings, own_names, file)
        return self._kept_of(LoadedAdapter(name, modules, saved))

    def _check(self, settings: Lora) -> None:
        """Raises `AdapterUnfitError` for an adapter that fits the model but not its engine."""

    def _kept_of(self, one: LoadedAdapter) -> LoadedAdapter:
        """Returns the adapter for a graph, with replaced layers as the difference that they add."""
        if self._places is None:
            return one
        for name in (*one.modules, *one.saved):
            if name not in self._places:
                raise AdapterUnfitError(
                    f"The base's OpenVINO conversion has no place for {name}. Set the base's "
                    "'engine' to 'torch'."
                )
        modules, constants = dict(one.modules), dict[str, torch.Tensor]()
        for name, (weight, bias) in one.saved.items():
            modules[name], constants[name] = self._difference(name, weight, bias)
        return LoadedAdapter(one.name, modules, {}, constants)

    def _difference(
        self, name: str, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Returns a whole layer as two matrices to add to the model's, and the constants between
        them.
        """
        change = weight.float() - self._weight(f"{name}.weight").float()
        outputs, inputs = change.shape
        if outputs <= inputs:
            down, up = change.T, torch.eye(outputs)
        else:
            down, up = torch.eye(inputs), change.T
        moved = torch.zeros(outputs)
        if bias is not None:
            moved = bias.float() - self._weight(f"{name}.bias").float()
        # An additional column, which a constant sets to one: its row is the bias.
        down = torch.cat([down, torch.zeros(inputs, 1)], dim=1)
        constants = torch.zeros(down.shape[1])
        constants[-1] = 1
        return (down.contiguous(), torch.cat([up, moved[None]]).contiguous()), constants

    def _weight(self, name: str) -> torch.Tensor:
        """Returns the model's own parameter. Raises `AdapterUnfitError` if no file has it."""
        module, _, kind = name.rpartition(".")
        parameter = getattr(self._model.get_submodule(module), kind)
        if parameter.device.type != "meta":
            return parameter
        stored = self._stored.get(name) if self._stored else None
        if stored is None or stored.shape != parameter.shape:
            raise AdapterUnfitError(
                f"The base's {name} cannot be read for a comparison with the adapter's."
            )
        return stored

    def _pair(self, name: str, one: lora.Matrices, file: Any) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self._layer(name)
        inputs, outputs = _size(layer)
        if (one.inputs, one.outputs) != (inputs, outputs):
            raise AdapterUnfitError(
                f"The adapter's matrices of {name} are for {one.inputs} inputs and "
                f"{one.outputs} outputs, but the base has {inputs} and {outputs}."
            )
        weight = layer.weight
        down = file.get_tensor(one.down).float()
        up = file.get_tensor(one.up).float() * one.scale
        return _placed(down.T.contiguous(), weight), _placed(up.T.contiguous(), weight)

    def _saved(
        self, settings: Lora, own: Mapping[str, str], file: Any
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
        layers: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for parameter, (tensor, shape) in settings.saved.items():
            module, _, kind = parameter.rpartition(".")
            name = own[module]
            layer = self._layer(name)
            target = getattr(layer, kind, None) if kind in ("weight", "bias") else None
            if type(layer) is not Linear or target is None:
                raise AdapterUnfitError(
                    f"The adapter replaces {name}, which is not a linear layer with this "
                    "parameter in the base."
                )
            if tuple(shape) != tuple(target.shape):
                raise AdapterUnfitError(
                    f"The adapter's {name} has the shape {[*shape]}, but the base's has "
                    f"{[*target.shape]}."
                )
            value = _placed(file.get_tensor(tensor), target)
            weight, bias = layers.get(name) or (
                self._weight(f"{name}.weight"),
                self._weight(f"{name}.bias") if hasattr(layer.bias, "shape") else None,
            )
            layers[name] = (value, bias) if kind == "weight" else (weight, value)
        return layers

    def _check_copies(self, settings: Lora, own: Mapping[str, str], file: Any) -> None:
        for parameter, (tensor, _) in settings.copied.items():
            name = own[parameter.rpartition(".")[0]]
            weight = self._weight(f"{name}.weight")
            value = file.get_tensor(tensor).to(weight.device, weight.dtype)
            if value.shape != weight.shape or not torch.equal(value, weight):
                raise AdapterUnfitError(
                    f"The adapter has its own {name}, for example because words were added to "
                    "the vocabulary. Merge it into the base."
                )

    def _layer(self, name: str) -> Any:
        layer = self._model.get_submodule(name)
        # A subclass may compute with its weights directly, without a call of the layer.
        if type(layer) is not Linear and type(layer).__name__ != _CONVOLUTION:
            raise AdapterUnfitError(
                f"The adapter changes {name}, a {type(layer).__name__}. Only linear layers "
                "are supported."
            )
        return layer


class _Rows:
    """The adapters of a batch's rows."""

    def __init__(self, given: Sequence[LoadedAdapter | None]) -> None:
        self.owners: torch.Tensor | None = None
        """See `Adapters.packed`."""
        self._size = len(given)
        by_adapter: dict[LoadedAdapter, list[int]] = {}
        for row, adapter in enumerate(given):
            if adapter is not None:
                by_adapter.setdefault(adapter, []).append(row)
        self._parts = [(adapter, torch.tensor(rows)) for adapter, rows in by_adapter.items()]

    def add(self, name: str, given: torch.Tensor, output: torch.Tensor) -> None:
        """Adds the adapters to the output of a layer, in place."""
        parts = [part for part in self._parts if name in part[0].modules or name in part[0].saved]
        if not parts:
            return
        rows_in, rows_out = self._by_row(name, given), self._by_row(name, output)
        for adapter, numbers in parts:
            is_all = len(numbers) == self._size
            rows = self._places(numbers.to(given.device), given)
            adapter_inputs = rows_in if is_all else rows_in.index_select(0, rows)
            if name in adapter.saved:
                adapter_outputs = torch.nn.functional.linear(adapter_inputs, *adapter.saved[name])
                if is_all:
                    rows_out.copy_(adapter_outputs)
                else:
                    rows_out.index_copy_(0, rows, adapter_outputs)
                continue
            down, up = adapter.modules[name]
            adapter_outputs = adapter_inputs @ down.to(adapter_inputs)
            if name in adapter.constants:
                adapter_outputs = adapter_outputs + adapter.constants[name].to(adapter_inputs)
            adapter_outputs = adapter_outputs @ up.to(adapter_inputs)
            if is_all:
                rows_out.add_(adapter_outputs)
            else:
                rows_out.index_add_(0, rows, adapter_outputs)

    def _is_packed(self, value: torch.Tensor) -> bool:
        return self.owners is not None and value.shape[:2] == (1, len(self.owners))

    def _places(self, rows: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Returns the places of rows in `_by_row` of a value."""
        if self.owners is None or not self._is_packed(value):
            return rows
        return torch.isin(self.owners, rows).nonzero()[:, 0]

    def fits(self, value: torch.Tensor) -> bool:
        """Returns True if a value has a part for each row."""
        return self._view(value) is not None

    def _by_row(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Views (…, features) as (rows, …, features), or as (tokens, features) if it is packed."""
        rows = self._view(value)
        if rows is None:
            raise AdapterUnfitError(
                f"The base computes {name} for all rows at once, so it cannot be adapted."
            )
        return rows

    def _view(self, value: torch.Tensor) -> torch.Tensor | None:
        """Returns a view for `_by_row`. None if the value has no part for each row."""
        if self._is_packed(value):
            return value[0]
        if value.shape[0] == self._size:
            return value
        # The rows of a packed pass are its tokens.
        if value.dim() > 2 and value.shape[:2] == (1, self._size):
            return value[0]
        # Some models concatenate the tokens of all rows.
        if value.dim() == 2 and self._size and value.shape[0] % self._size == 0:
            return value.view(self._size, -1, value.shape[1])
        return None


def _placed(value: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
    """Moves a value to the device and type of another one. Single precision if the other is on no
    device.
    """
    if beside.device.type == "meta":
        return value.float()
    return value.to(beside.device, beside.dtype)


def _size(layer: Any) -> tuple[int, int]:
    """Returns the numbers of inputs and outputs of a layer."""
    first, other = layer.weight.shape
    return (other, first) if type(layer) is Linear else (first, other)


def _own_names(model: Any, settings: Lora) -> dict[str, str]:
    """Maps an adapter's module names to the model's own.

    The adapter may have been trained on a model around this one, or on a model inside it. Then all
    names begin differently.
    """
    whole = (*settings.saved, *settings.copied)
    adapter_modules = {*settings.modules, *(name.rpartition(".")[0] for name in whole)}
    known = {name for name, _ in model.named_modules()}
    around = [f"{part}." for part in (getattr(model, "base_model_prefix", ""), "model") if part]
    for depth in range(_DEEPEST + 1):
        inner = {name: ".".join(name.split(".")[depth:]) for name in adapter_modules}
        for prefix in ("", *around):
            if all(name and f"{prefix}{name}" in known for name in inner.values()):
                return {name: f"{prefix}{part}" for name, part in inner.items()}
    lost = next((name for name in sorted(adapter_modules) if name not in known), "")
    raise AdapterUnfitError(
        f"The base has no module {lost[:120]!a}: the adapter is for another base."
    )
