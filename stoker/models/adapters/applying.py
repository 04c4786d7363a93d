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

from stoker.models.adapters import lora
from stoker.models.adapters.fitting import AdapterUnfitError, BaseModel
from stoker.models.adapters.lora import Lora
from stoker.models.adapters.stored import StoredWeights


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
        self._base = BaseModel(model)
        self._folder = folder
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, LoadedAdapter] = OrderedDict()
        """Loaded adapters, least recently used first."""
        self._lock = threading.Lock()
        self._places: AbstractSet[str] | None = None
        self._hooked: WeakSet[Any] = WeakSet()
        self._rows: _Rows | None = None
        self._kept_rows: _Rows | None = None
        """Adapters of the rows with logits, see `rows`. None if all rows have logits."""

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
            self._base, self._places = BaseModel(model.to("meta"), stored), places
            self._kept.clear()

    def check_all(self, model: Any, stored: StoredWeights, places: AbstractSet[str]) -> None:
        """Raises `AdapterUnfitError` if an existing adapter could not be loaded after `rebase`."""
        trial = Adapters(model, self._folder, 0)
        trial._base, trial._places = BaseModel(model, stored), places
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
        adapters: Sequence[LoadedAdapter | None],
        kept: Sequence[LoadedAdapter | None] | None = None,
    ) -> Generator[None]:
        """Applies these adapters to the rows of a torch model's passes within the block.

        Args:
            kept: adapters of the rows with logits, if a pass computes logits for some rows only.
        """
        if not any(adapters):
            yield
            return
        self._rows = _Rows(adapters)
        self._kept_rows = None if kept is None or len(kept) == len(adapters) else _Rows(kept)
        for name in {
            name for adapter in adapters if adapter for name in (*adapter.modules, *adapter.saved)
        }:
            self._hook(name, model.get_submodule(name))
        try:
            yield
        finally:
            self._rows = self._kept_rows = None

    @contextlib.contextmanager
    def packed(self, owners: torch.Tensor) -> Generator[None]:
        """Applies the adapters of `rows` to layers that run on one packed row with the tokens of
        all rows.

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

        def add_adapters(_module: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            rows, kept = self._rows, self._kept_rows
            if rows and kept and not rows.fits(inputs[0]):
                rows = kept
            if rows:
                rows.add(name, inputs[0], output)

        module.register_forward_hook(add_adapters)

    def _loaded(self, name: str) -> LoadedAdapter:
        from safetensors import safe_open

        folder = self._folder / name
        library: Any = safe_open
        with library(str(folder / lora.WEIGHTS), framework="pt") as file:
            names: list[str] = list(file.keys())
            shapes = {tensor: tuple(file.get_slice(tensor).get_shape()) for tensor in names}
            config: Any = json.loads((folder / lora.CONFIG).read_text())
            settings = lora.read(config, shapes)
            if settings.alone:
                raise AdapterUnfitError(settings.alone)
            self._check(settings)
            module_names = self._base.module_names(settings)
            modules = {
                module_names[module]: self._base.read_matrices(module_names[module], matrices, file)
                for module, matrices in settings.modules.items()
            }
            saved = self._base.read_layers(settings, module_names, file)
            self._base.check_copies(settings, module_names, file)
        return self._kept_of(LoadedAdapter(name, modules, saved))

    def _check(self, settings: Lora) -> None:
        """Raises `AdapterUnfitError` for an adapter that fits the model but not its engine."""

    def _kept_of(self, adapter: LoadedAdapter) -> LoadedAdapter:
        """Returns the adapter for a graph, with replaced layers as the difference that they add."""
        if self._places is None:
            return adapter
        for name in (*adapter.modules, *adapter.saved):
            if name not in self._places:
                raise AdapterUnfitError(
                    f"The base's OpenVINO conversion has no place for {name}. Set the base's "
                    "'engine' to 'torch'."
                )
        modules, constants = dict(adapter.modules), dict[str, torch.Tensor]()
        for name, (weight, bias) in adapter.saved.items():
            modules[name], constants[name] = self._base.difference(name, weight, bias)
        return LoadedAdapter(adapter.name, modules, {}, constants)


class _Rows:
    """The adapters of a batch's rows."""

    def __init__(self, adapters: Sequence[LoadedAdapter | None]) -> None:
        self.owners: torch.Tensor | None = None
        """See `Adapters.packed`."""
        self._size = len(adapters)
        by_adapter: dict[LoadedAdapter, list[int]] = {}
        for row, adapter in enumerate(adapters):
            if adapter is not None:
                by_adapter.setdefault(adapter, []).append(row)
        self._parts = [(adapter, torch.tensor(rows)) for adapter, rows in by_adapter.items()]

    def add(self, name: str, inputs: torch.Tensor, output: torch.Tensor) -> None:
        """Adds the adapters to the output of a layer, in place."""
        parts = [part for part in self._parts if name in part[0].modules or name in part[0].saved]
        if not parts:
            return
        rows_in, rows_out = self._by_row(name, inputs), self._by_row(name, output)
        for adapter, adapter_rows in parts:
            is_all = len(adapter_rows) == self._size
            rows = self._places(adapter_rows.to(inputs.device), inputs)
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
        """Returns the indices of rows in the view that `_by_row` returns for a value."""
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
        # In a packed pass of a language model, each token has a row.
        if value.dim() > 2 and value.shape[:2] == (1, self._size):
            return value[0]
        # Some models concatenate the tokens of all rows.
        if value.dim() == 2 and self._size and value.shape[0] % self._size == 0:
            return value.view(self._size, -1, value.shape[1])
        return None
